"""Operators: torch's database of them, custom ones, their effects and failures."""
