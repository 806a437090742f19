"""Symbolic integers: sizes as polynomials, index expressions, and their interning."""
