"""FX graphs to functional ATen graphs, forward and backward, with generated run-time wrappers."""

from framesmith_aot.__about__ import __version__
from framesmith_aot.capture.backends import make_boxed
from framesmith_aot.capture.export import export_joint
from framesmith_aot.capture.functions import AotFunction, AotModule, TooManyEntries, aot_function, aot_module
from framesmith_aot.compile import compile_graph
from framesmith_aot.errors import AotError, AotUnsupported, DoubleBackwardError
from framesmith_aot.partition.saved_values import Memory, Traced
from framesmith_aot.runtime.compiled import CompiledGraph

__all__ = [
    "AotError",
    "AotFunction",
    "AotModule",
    "AotUnsupported",
    "CompiledGraph",
    "DoubleBackwardError",
    "Memory",
    "TooManyEntries",
    "Traced",
    "__version__",
    "aot_function",
    "aot_module",
    "compile_graph",
    "export_joint",
    "make_boxed",
]
