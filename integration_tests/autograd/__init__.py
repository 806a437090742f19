"""Backward passes, higher derivatives and torch.func transforms."""
