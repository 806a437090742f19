"""Programs over the kinds of hooks: `PROGRAMS[name](log)` runs one, notes what user code sees, returns tensors."""

from hook_programs import functions_and_roots, leaves_and_modules, tensors_and_nodes
from hook_programs.registry import PROGRAMS

__all__ = ["PROGRAMS", "functions_and_roots", "leaves_and_modules", "tensors_and_nodes"]
