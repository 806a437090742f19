"""The reference page of the canonical instructions."""
