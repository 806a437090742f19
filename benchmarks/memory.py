"""Peak memory of a step beyond what was held before it, each candidate in its own process; what compiling adds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.selection import Selection, title
from benchmarks.zoo import select


def status(field: str) -> int:
    """Bytes of a field of this process's status, of the kernel's own counting."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the kernel has no {field} in /proc/self/status")


def peak_of_step(name: str, mode: str, dtype: str, candidate: str) -> tuple[int, int]:
    """Bytes a step adds at its peak after warm-up, and bytes that building and first calls added."""
    from benchmarks.models import prepare

    (row,) = select(name)
    before = status("VmRSS")
    step = prepare(row, mode, dtype, candidate)
    for _ in range(2):
        step()
    held = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return max(0, status("VmHWM") - held), held - before


def measure(name: str, mode: str, dtype: str, candidate: str) -> tuple[int, int]:
    """`peak_of_step` in a fresh interpreter."""
    arguments = ", ".join(map(repr, (name, mode, dtype, candidate)))
    code = (
        "from benchmarks.candidates import fresh_inductor_cache; fresh_inductor_cache()\n"
        f"from benchmarks.memory import peak_of_step; print(*peak_of_step({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:200])
    peak, added = done.stdout.splitlines()[-1].split()
    return int(peak), int(added)


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for; rows hold bytes."""
    selection = selection or Selection()
    rows: list[Row] = []
    for row, mode, dtype in selection.cases():
        case, found = title(row, mode, dtype), []
        for name in selection.names(row, mode, dtype):
            try:
                peak, added = measure(row.name, mode, dtype, name)
            except RuntimeError as error:
                found.append(Row(case, name, float("nan"), {}, 0, str(error)))
                print(f"{case:<40} {name:<14} cannot: {error}", flush=True)
                continue
            found.append(Row(case, name, float("nan"), {}, 1, "", {"peak_bytes": peak, "compiling_bytes": added}))
            print(f"{case:<40} {name:<14} {peak / 2**20:7.1f} MiB, {added / 2**20:7.1f} before", flush=True)
        selection.keep(found)
        rows += found
    return rows
