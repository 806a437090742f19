"""Objects that are known and never change."""
