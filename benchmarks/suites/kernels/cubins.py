"""The machine code of the cuda backend's kernels, for each kind of GPU and without one.

Kernels are compiled in processes side by side, each once; Triton keeps what it compiled in the user's cache folder.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import framesmith
from benchmarks.harness.timing import Row
from benchmarks.models.selection import Selection
from benchmarks.suites.kernels.gpu_kernels import Collector, Made, programs
from benchmarks.suites.kernels.traffic import modelled, why_not_modelled
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.render.triton.kernel import TritonKernel

CAPABILITIES = (80, 90, 100)
#: The figures of a row. What is spilled are bytes of stores, as the assembler reports them.
REGISTERS, STACK, SPILLED, SHARED = "registers", "stack bytes", "spilled bytes", "shared bytes"
#: Those of the model of memory traffic, where it has any. Of less than this nobody waits for memory.
MODELLED, LEAST, FEW_BYTES = "modelled bytes", "least bytes", 32 << 10


def figures(compiled: Any, capability: int) -> dict[str, int]:
    """Resources of the machine code for each thread and each block."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "kernel.cubin")
        code.write_bytes(compiled.asm["cubin"])
        output = _output(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", code)
        usage = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|SHARED):(\d+)", output)}
        spilled = _spilled(compiled, capability, Path(folder)) if usage["STACK"] else 0
    shared = max(usage["SHARED"], compiled.metadata.shared)
    return {REGISTERS: usage["REG"], STACK: usage["STACK"], SPILLED: spilled, SHARED: shared}


def _spilled(compiled: Any, capability: int, folder: Path) -> int:
    """Bytes of spill stores; the rest of the stack are arrays that functions of the device library keep there."""
    from triton import knobs

    text = folder / "kernel.ptx"
    text.write_text(compiled.asm["ptx"])
    (target,) = re.findall(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)
    assembler = knobs.nvidia.ptxas_blackwell if capability >= 100 else knobs.nvidia.ptxas
    fused = [] if compiled.metadata.enable_fp_fusion else ["--fmad=false"]
    output = _output(assembler.path, "-v", *fused, f"--gpu-name={target}", text, "-o", folder / "again")
    return sum(int(number) for number in re.findall(r"(\d+) bytes spill stores", output))


def _output(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def compiled_row(case: str, kernel: TritonKernel, capability: int) -> Row:
    """The kernel compiled for that compute capability, with sizes and tensors aligned as they mostly are."""
    from framesmith_backends.launch.cuda.triton_jit import compiled

    start = time.perf_counter()
    try:
        found = figures(compiled(kernel, capability, True), capability)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Row(case, f"sm_{capability}", 0.0, {}, 1, reason=why)
    return Row(case, f"sm_{capability}", time.perf_counter() - start, {}, 1, figures=found)


def _compiled_for_all(made: tuple[str, TritonKernel]) -> list[Row]:
    return [compiled_row(*made, capability) for capability in CAPABILITIES]


def collected(selection: Selection) -> list[Made]:
    """All kernels of the selection's programs, each once; a program that fails is reported."""
    collector = Collector()
    for name, run in programs(selection):
        framesmith.reset()
        collector.case = name
        try:
            run(collector)
        except Exception as error:
            print(f"{name}: cannot: {type(error).__name__}: {' '.join(str(error).split())[:150]}", flush=True)
    return list(collector.made.values())


def compile_all(made: list[Made], processes: int) -> Iterator[list[Row]]:
    """Rows of each kernel, as they come; kernels of a case have a number."""
    count: Counter[str] = Counter()
    jobs = []
    for one in made:
        count[one.case] += 1
        jobs.append((f"{one.case}, kernel {count[one.case]}", replace(one.triton, longer=None)))
    moved = [traffic_figures(one.kernel) for one in made]
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=keep_in_cache_folder) as pool:
        for rows, figures_moved in zip(pool.map(_compiled_for_all, jobs, chunksize=4), moved, strict=True):
            yield [row if row.reason else replace(row, figures=row.figures | figures_moved) for row in rows]


def traffic_figures(kernel: Kernel | None) -> dict[str, int]:
    """The model's bytes and the least ones; nothing where it has none."""
    if kernel is None or why_not_modelled(kernel) is not None:
        return {}
    found = modelled(kernel)
    return {MODELLED: found.bytes, LEAST: found.least}


def is_near_least(figures: dict[str, int]) -> bool:
    """Whether the modelled traffic is within a tenth of the least, or little."""
    return figures[MODELLED] <= 1.1 * figures[LEAST] or figures[LEAST] < FEW_BYTES


def keep_in_cache_folder() -> None:
    """Triton's own folder, also where benchmarks of compilers have set another: nothing is timed here."""
    os.environ.pop("TRITON_CACHE_DIR", None)


def run(selection: Selection | None = None) -> list[Row]:
    """Every kernel of the programs asked for, on every kind of GPU."""
    selection = selection or Selection()
    made = collected(selection)
    print(f"{len(made)} kernels, each compiled for {', '.join(f'sm_{c}' for c in CAPABILITIES)}", flush=True)
    rows: list[Row] = []
    for found in compile_all(made, os.cpu_count() or 1):
        rows += found
        selection.keep(found)
    print_figures(rows)
    return rows


def print_figures(rows: list[Row]) -> None:
    """For each kind of GPU what its kernels take, and every kernel that spills or does not compile."""
    for capability in CAPABILITIES:
        mine = [row for row in rows if row.candidate == f"sm_{capability}"]
        good = [row for row in mine if not row.reason]
        print(f"sm_{capability}: {len(good)} of {len(mine)} kernels compile")
        for name in (REGISTERS, SHARED):
            numbers = sorted(row.figures[name] for row in good)
            if numbers:
                print(f"    {name}: median {numbers[len(numbers) // 2]}, most {numbers[-1]}")
    print_traffic([row for row in rows if MODELLED in row.figures and row.candidate == f"sm_{CAPABILITIES[0]}"])
    for row in rows:
        if row.reason:
            print(f"    {row.case}, {row.candidate}: {row.reason[:200]}")
        elif row.figures[SPILLED]:
            print(f"    {row.case}, {row.candidate}: spills {row.figures[SPILLED]} bytes a thread")


def print_traffic(rows: list[Row]) -> None:
    """Count the kernels that move little more than they have to, by the model, and list the others."""
    near = sum(is_near_least(row.figures) for row in rows)
    print(f"memory traffic: {near} of {len(rows)} kernels within 1.1 of the least")
    for row in rows:
        if not is_near_least(row.figures):
            ratio = row.figures[MODELLED] / row.figures[LEAST]
            print(f"    {row.case}: {ratio:.2f} of {row.figures[LEAST]} bytes")
