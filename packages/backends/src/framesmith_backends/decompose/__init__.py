"""Decompositions: the formulas of composite operators in the core scalar operations. Lowering rules use them."""
