"""The device's clock: candidates of matmuls and kernels launched on similar operands and timed by CUDA events.

Each candidate is captured as a CUDA graph of several launches, so that the host's work between them does not count, and
the graphs are replayed in turns. Inputs of the graph that is compiled are read in other copies at each launch, as many
as the cache does not hold: so a model's weights are met. What other kernels have just written is in the cache.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from framesmith_backends.autotune.autotuner import Times
from framesmith_backends.autotune.trials import BEFORE, Buffers, Experiment, TooLarge, Trial, ints, span
from framesmith_backends.ir.dtypes import DTYPES, FLOAT8
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.launch.cuda.cubins import cubin
from framesmith_backends.launch.cuda.driver import Device
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, kernel_run
from framesmith_backends.launch.cuda.native import native_entries
from framesmith_backends.launch.cuda.vector_flags import PROMISES
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.reporting import PLAN_LOG
from framesmith_backends.schedule.steps import run_of
from framesmith_backends.torch_adapter import unstable

#: Rounds in which all candidates are replayed, if these take no longer than the experiment may.
ROUNDS = 7
#: Launches of a capture, and the seconds that they should take.
MOST_LAUNCHES, SPAN = 16, 2e-3
#: Copies of inputs take no more bytes than this, and so much of the cache; all buffers this part of what is free.
MOST_COPIED, BEYOND_CACHE, SHARE_OF_FREE = 512 << 20, 1.25, 4
#: Candidates that take so much longer than the best one in a round are out.
OUT = 1.3
#: Results of a candidate that are not near those of the baseline, and how many there may be.
NEAR, FAR_AWAY = 0.05, 0.01
#: The value of the user's numbers, which a kernel is given at each call, while it is timed.
NUMBER = 0.5

Result = TypeVar("Result")
#: A launch; what it gives back is the matmul, where that is no buffer among those that it is given.
LaunchedCandidate = Callable[[Buffers], torch.Tensor | None]


@dataclass(slots=True)
class DeviceClock:
    """Times on a CUDA device."""

    device: Device

    @property
    def capability(self) -> int:
        return self.device.capability

    @property
    def processors(self) -> int:
        return int(torch.cuda.get_device_properties(self.place).multi_processor_count)

    @property
    def about(self) -> tuple[object, ...]:
        import triton

        versions = torch.__version__, torch.version.cuda, triton.__version__, PROMISES.pattern
        return torch.cuda.get_device_name(self.place), self.capability, self.processors, *versions

    def is_free(self) -> bool:
        return not torch.cuda.is_current_stream_capturing()

    def times(self, trials: Sequence[Trial], program: Program) -> list[Times | Exception]:
        with unstable.disable_current_modes(), torch.no_grad(), torch.cuda.device(self.place), _plain():
            made = [_attempt(partial(trial.experiment, program)) for trial in trials]
            fine = {at: one for at, one in enumerate(made) if isinstance(one, Experiment)}
            launched = _attempt(lambda: self._candidates([trials[at] for at in fine], [*fine.values()]))
            if isinstance(launched, Exception):
                return [one if isinstance(one, Exception) else launched for one in made]
            found: dict[int, Times | Exception] = {
                at: _attempt(partial(_timed, trials[at], one, own, self.place))
                for (at, one), own in zip(fine.items(), launched, strict=True)
            }
            return [one if isinstance(one, Exception) else found[at] for at, one in enumerate(made)]

    def _candidates(
        self, trials: Sequence[Trial], experiments: Sequence[Experiment]
    ) -> list[dict[str, LaunchedCandidate]]:
        """The candidates of each trial that compile, by name; machine code of all is made side by side."""
        wanted = [(at, name, *what) for at, one in enumerate(experiments) for name, what in one.launches.items()]
        runs = [kernel_run(run_of(f"candidate{k}", items), what) for k, (_, _, items, what) in enumerate(wanted)]
        entries = self.entries(runs)
        found: list[dict[str, LaunchedCandidate]] = [{} for _ in trials]
        for (at, name, *_), run in zip(wanted, runs, strict=True):
            if run.step.entry in entries:
                found[at][name] = _launching(entries[run.step.entry], run)
        for trial, one, own in zip(trials, experiments, found, strict=True):
            if one.call is not None:
                before, after = own.pop(BEFORE, None), own.pop(trial.baseline, None)
                asked = sum(name in one.launches for name in (BEFORE, trial.baseline))
                if asked == sum(part is not None for part in (before, after)):
                    own[trial.baseline] = _with_call(one, one.call, before, after)
        return found

    def entries(self, runs: Sequence[KernelRun]) -> Mapping[str, object]:
        """Functions that launch the runs whose kernels compile, by the entries' names."""
        with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
            fine = [*pool.map(lambda run: all(_compiled(one, self.capability) for one in run.kernels), runs)]
        good = [run for run, is_fine in zip(runs, fine, strict=True) if is_fine]
        instead = {run.step.entry: _never for run in good}
        return native_entries(good, instead, self.device) if good else {}

    @property
    def place(self) -> torch.device:
        """The device of the operands."""
        return torch.device("cuda", self.device.index)


def _attempt(call: Callable[[], Result]) -> Result | Exception:
    """The result of a call, or what it raised."""
    try:
        return call()
    except Exception as error:
        return error


def _compiled(kernel: TritonKernel, capability: int) -> bool:
    try:
        cubin(kernel, False, capability)
    except Exception as error:
        PLAN_LOG.info("a candidate of %s does not compile: %s", kernel.name, error)
        return False
    return True


def _never(*values: object) -> None:
    raise RuntimeError("operands that are timed begin at multiples of 16 bytes")


def _launching(entry: object, run: KernelRun) -> LaunchedCandidate:
    names, numbers = run.step.buffers, [NUMBER] * len(run.step.numbers)

    def launch(buffers: Buffers) -> torch.Tensor | None:
        entry(*(buffers[name] for name in names), *numbers)  # type: ignore[operator]
        return None

    return launch


def _with_call(
    one: Experiment,
    call: Callable[[Buffers], torch.Tensor],
    before: LaunchedCandidate | None,
    after: LaunchedCandidate | None,
) -> LaunchedCandidate:
    """The launches before the call, the call, and the launches behind it."""

    def launch(buffers: Buffers) -> torch.Tensor:
        if before is not None:
            before(buffers)
        result = call(buffers)
        if after is not None:
            after({**buffers, one.result: result})
        return result

    return launch


@contextmanager
def _plain() -> Iterator[None]:
    """Without what the user's code may have around it."""
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
        yield


def _timed(trial: Trial, one: Experiment, candidates: dict[str, LaunchedCandidate], device: torch.device) -> Times:
    """Seconds of a launch of each candidate whose results are those of the baseline."""
    if trial.baseline not in candidates:
        raise RuntimeError(f"the baseline of {trial.name} does not compile")
    sizes = {name: span(layout) * DTYPES[layout.dtype].itemsize for name, layout in one.layouts.items()}
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if sum(sizes.values()) > (free + cached) // SHARE_OF_FREE:
        raise TooLarge(f"operands take more than a part in {SHARE_OF_FREE} of the memory that is free")
    copies = _copies(sum(sizes[name] for name in one.cold), device)
    generator = torch.Generator(device).manual_seed(0)
    first = {name: _made(layout, device, generator, one.bounds.get(name)) for name, layout in one.layouts.items()}
    sets = [first, *({**first, **{name: _copy(first[name]) for name in one.cold}} for _ in range(copies - 1))]
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            agreeing = _agreeing(trial, one, candidates, first)
            count = _count(agreeing[trial.baseline], first, copies)
            graphs = {name: _captured(candidate, sets, count) for name, candidate in agreeing.items()}
            found = _rounds(graphs, trial.baseline, one.seconds)
    finally:
        stream.synchronize()  # launches may be on their way whatever happened, and operands' memory is given away next
    return {name: seconds / count for name, seconds in found.items()}


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for each device: cuBLAS keeps memory for every stream that it meets."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _made(layout: Layout, device: torch.device, generator: torch.Generator, bound: int | None) -> torch.Tensor:
    """A tensor of the layout: random numbers; integers are below `bound`, or zeros, which are valid indices."""
    dtype = DTYPES[layout.dtype].torch
    flat = torch.zeros(span(layout), dtype=dtype, device=device)
    if layout.dtype in FLOAT8:
        flat.copy_(torch.randn(flat.shape, generator=generator, device=device))
    elif dtype.is_floating_point:
        flat.normal_(generator=generator)
    elif bound is not None or dtype == torch.bool:
        most = 2 if dtype == torch.bool or bound is None else min(bound, torch.iinfo(dtype).max)
        flat.random_(0, most, generator=generator)
    return flat.as_strided(ints(layout.shape), ints(layout.strides))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,))
    return flat.clone().as_strided(tensor.shape, tensor.stride())


def _copies(size: int, device: torch.device) -> int:
    """The number of copies of so many bytes that exceeds the cache."""
    if size == 0:
        return 1
    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(1, min(math.ceil(BEYOND_CACHE * cache / size) + 1, MOST_LAUNCHES, MOST_COPIED // size))


def _agreeing(
    trial: Trial, one: Experiment, candidates: dict[str, LaunchedCandidate], buffers: dict[str, torch.Tensor]
) -> dict[str, LaunchedCandidate]:
    """The candidates that make what the baseline does of the same buffers, or near that; each has run once then.

    What is written was random, so that it is not right before a candidate has run.
    """
    before = {name: _copy(buffers[name]) for name in one.written}
    result = candidates[trial.baseline](buffers)
    wanted = {name: buffers[name].clone() for name in one.written}
    if result is not None and one.result in wanted:
        wanted[one.result] = result
    found = {trial.baseline: candidates[trial.baseline]}
    for label, candidate in candidates.items():
        if label == trial.baseline:
            continue
        for name in one.written:
            buffers[name].copy_(before[name])
        candidate(buffers)
        if all(_is_near(buffers[name], wanted[name]) for name in one.written):
            found[label] = candidate
        else:
            PLAN_LOG.warning("%s in %s gives other numbers and is not used", trial.name, label)
    return found


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether few elements are elsewhere, of truths and integers others: some hang on a sum's last bits."""
    if not other.dtype.is_floating_point:
        return float((one == other).float().mean()) >= 1 - FAR_AWAY
    scale = float(other.float().abs().nan_to_num(0.0, 0.0, 0.0).mean())
    near = torch.isclose(one.float(), other.float(), rtol=NEAR, atol=NEAR * max(scale, 1e-30), equal_nan=True)
    return float(near.float().mean()) >= 1 - FAR_AWAY


def _count(candidate: LaunchedCandidate, buffers: dict[str, torch.Tensor], copies: int) -> int:
    """The number of launches in a capture."""
    start, end = _event(), _event()
    start.record()
    candidate(buffers)
    end.record()
    end.synchronize()
    seconds = max(start.elapsed_time(end) / 1e3, 1e-6)
    return max(min(MOST_LAUNCHES, int(SPAN / seconds)), min(copies, 2))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _captured(
    candidate: LaunchedCandidate, sets: Sequence[dict[str, torch.Tensor]], count: int
) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for k in range(count):
            candidate(sets[k % len(sets)])
    finally:
        graph.capture_end()
    return graph


def _rounds(graphs: dict[str, torch.cuda.CUDAGraph], baseline: str, budget: float) -> dict[str, float]:
    """The median seconds of each capture, all replayed in turns; of those that were far behind, what they took."""
    start = time.perf_counter()
    found: dict[str, list[float]] = {name: [] for name in graphs}
    running = [*graphs]
    for number in range(ROUNDS + 1):
        events = {name: (_event(), _event()) for name in running}
        for name in running:
            first, last = events[name]
            first.record()
            graphs[name].replay()
            last.record()
        torch.cuda.current_stream().synchronize()
        for name, (first, last) in events.items():
            if number == 1:
                found[name].clear()  # the first round sets things up
            found[name].append(first.elapsed_time(last) / 1e3)
        if number == 0:
            continue
        best = min(statistics.median(found[name]) for name in running)
        running = [name for name in running if name == baseline or statistics.median(found[name]) <= OUT * best]
        if time.perf_counter() - start > budget:
            break
    return {name: statistics.median(times) for name, times in found.items()}
