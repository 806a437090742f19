"""Compile PyTorch programs: `framesmith.compile()` composes frame capture, graphs and kernels."""

import framesmith.releases  # noqa: F401  # first: the packages below may lack what an older torch does not have

# isort: split
from framesmith.__about__ import __version__
from framesmith.api import compile, reset
from framesmith.backends import list_backends
from framesmith.backward import compile_backward, end_compiled_autograd
from framesmith.explanation import Explanation, explain
from framesmith.reports.failures import FramesmithError, FramesmithWarning
from framesmith.reports.logs import set_logs, set_logs_from_environment
from framesmith.reports.stats import stats
from framesmith.targets.disabling import disable
from framesmith_dynamo import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic

__all__ = [
    "Explanation",
    "FramesmithError",
    "FramesmithWarning",
    "__version__",
    "compile",
    "compile_backward",
    "disable",
    "end_compiled_autograd",
    "explain",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "reset",
    "set_logs",
    "stats",
]

set_logs_from_environment()
