"""The registry of kernels, grouped by kind."""

from benchmarks.kernel_cases.case import Case
from benchmarks.kernel_cases.elementary import ELEMENTARY
from benchmarks.kernel_cases.indexing import INDEXING
from benchmarks.kernel_cases.layout import LAYOUT
from benchmarks.kernel_cases.pointwise import POINTWISE
from benchmarks.kernel_cases.reductions import REDUCTIONS
from benchmarks.kernel_cases.rows import ROWS
from benchmarks.kernel_cases.updates import UPDATES

CASES: tuple[Case, ...] = (*POINTWISE, *ELEMENTARY, *ROWS, *REDUCTIONS, *INDEXING, *LAYOUT, *UPDATES)

__all__ = ["CASES", "Case"]
