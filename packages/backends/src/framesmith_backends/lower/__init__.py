"""Lowering: each ATen operator a rule that makes definitions; views become index maps."""
