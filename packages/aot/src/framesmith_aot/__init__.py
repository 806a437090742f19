"""FX graphs to functional ATen graphs, forward and backward, with generated run-time wrappers."""

from framesmith_aot.__about__ import __version__
from framesmith_aot.compile import compile_graph
from framesmith_aot.errors import AotError, AotUnsupported, DoubleBackwardError
from framesmith_aot.partition.saved_values import Memory, Traced
from framesmith_aot.runtime.compiled import CompiledGraph

__all__ = [
    "AotError",
    "AotUnsupported",
    "CompiledGraph",
    "DoubleBackwardError",
    "Memory",
    "Traced",
    "__version__",
    "compile_graph",
]
