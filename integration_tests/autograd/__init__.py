"""Backward passes, higher derivatives, hooks, what is saved for backward."""
