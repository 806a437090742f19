"""Fake tensors and symbols: torch's own, made without importing torch._dynamo, with rules that torch lacks."""

from framesmith_aten.fakes.defects import is_defect
from framesmith_aten.fakes.modes import fake_mode_of, new_fake_mode
from framesmith_aten.fakes.rules.memory_reads import is_memory_read
from framesmith_aten.fakes.rules.python_kernels import python_kernels

__all__ = ["fake_mode_of", "is_defect", "is_memory_read", "new_fake_mode", "python_kernels"]
