"""FX graphs to functional ATen graphs, forward and backward, with generated run-time wrappers."""

from framesmith_aot.__about__ import __version__
from framesmith_aot.compile import compile_graph
from framesmith_aot.contracts import BoxedFn, Compiler, Decompositions, Role
from framesmith_aot.decompose import default_decompositions
from framesmith_aot.errors import AotError, AotUnsupported, DoubleBackwardError, GraphInvariantError
from framesmith_aot.runtime import CompiledGraph
from framesmith_aot.verify import verify

__all__ = [
    "AotError",
    "AotUnsupported",
    "BoxedFn",
    "CompiledGraph",
    "Compiler",
    "Decompositions",
    "DoubleBackwardError",
    "GraphInvariantError",
    "Role",
    "__version__",
    "compile_graph",
    "default_decompositions",
    "verify",
]
