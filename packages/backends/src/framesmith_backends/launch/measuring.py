"""The device's clock: products' forms launched side by side on operands like the real ones, and timed by events.

Each form is recorded as a CUDA graph of several launches, so that what the host does between them does not count, and
the graphs are replayed in turns. Inputs of the graph that is compiled are read in other copies at each launch, as many
as the cache does not hold: so a model's weights are met. What other kernels have just written is in the cache.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.product import Item
from framesmith_backends.ir.program import Layout, Program
from framesmith_backends.ir.size import Size
from framesmith_backends.launch.choosing import PRESENT, Times, Trial
from framesmith_backends.launch.cubins import cubin
from framesmith_backends.launch.cuda_driver import Driver
from framesmith_backends.launch.cuda_native import native_entries
from framesmith_backends.launch.kernel_runs import KernelRun, alone, computing, kernel_run, rendered
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.schedule.cuts import run_of
from framesmith_backends.schedule.products import place_of
from framesmith_backends.telling import PLANS

#: Seconds for the forms of a product, and rounds in which they are all replayed, if these take no longer.
BUDGET, ROUNDS = 1.5, 7
#: Launches of a recording, and the seconds that they should take.
MOST_LAUNCHES, SPAN = 16, 2e-3
#: Copies of inputs take no more bytes than this, and so much of the cache; all buffers this part of what is free.
MOST_COPIED, BEYOND_CACHE, SHARE_OF_FREE = 512 << 20, 1.25, 4
#: The name of what the present form launches before its call.
BEFORE = "before"
#: Forms that take so much longer than the best one in a round are out.
OUT = 1.3
#: Results of a form that are not near those of the present one, and how many there may be.
NEAR, FAR_AWAY = 0.05, 0.01

_LOCK = threading.Lock()
#: A launch; what it gives back is the product, where that is no buffer among those that it is given.
LaunchedForm = Callable[[Mapping[str, torch.Tensor]], torch.Tensor | None]


@dataclass(slots=True)
class DeviceClock:
    """Times on a CUDA device, by its number."""

    device: int
    driver: Driver

    @property
    def capability(self) -> int:
        major, minor = torch.cuda.get_device_capability(self.device)
        return 10 * major + minor

    @property
    def processors(self) -> int:
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    @property
    def about(self) -> tuple[object, ...]:
        import triton

        name = torch.cuda.get_device_name(self.device)
        return name, self.capability, self.processors, torch.__version__, torch.version.cuda, triton.__version__

    def is_free(self) -> bool:
        return not torch.cuda.is_current_stream_capturing()

    def times(self, trials: Sequence[Trial], program: Program) -> list[Times | Exception]:
        with _LOCK, _disable_current_modes(), torch.no_grad(), torch.cuda.device(self.device), _plain():
            try:
                forms = self._forms(trials, program)
            except Exception as error:
                return [error] * len(trials)
            return [self._timed(trial, own, program) for trial, own in zip(trials, forms, strict=True)]

    def _forms(self, trials: Sequence[Trial], program: Program) -> list[dict[str, LaunchedForm]]:
        """The forms of each trial that compile, by name; machine code of all is made side by side."""
        wanted = [(at, name, items) for at, trial in enumerate(trials) for name, items in _items(trial)]
        runs = [_run(f"form{k}", items) for k, (_, _, items) in enumerate(wanted)]
        entries = self.entries(runs)
        found: list[dict[str, LaunchedForm]] = [{} for _ in trials]
        for (at, name, _), run in zip(wanted, runs, strict=True):
            if run.step.entry in entries:
                found[at][name] = _launching(entries[run.step.entry], run.step.buffers)
        for trial, own in zip(trials, found, strict=True):
            before, after = own.pop(BEFORE, None), own.pop(PRESENT, None)
            one = trial.fusable
            if (one.kernel is None or after is not None) and (not one.before() or before is not None):
                own[PRESENT] = _with_call(trial, program, before, after)
        return found

    def entries(self, runs: Sequence[KernelRun]) -> Mapping[str, object]:
        """Functions that launch the runs whose kernels compile, by the entries' names."""
        with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
            fine = [*pool.map(lambda run: _compiles(run, self.capability), runs)]
        good = [run for run, is_fine in zip(runs, fine, strict=True) if is_fine]
        instead = {run.step.entry: _never for run in good}
        return native_entries(good, instead, self.device, self.capability, self.driver) if good else {}

    @property
    def place(self) -> torch.device:
        """Where operands are made."""
        return torch.device("cuda", self.device)

    def _timed(self, trial: Trial, forms: dict[str, LaunchedForm], program: Program) -> Times | Exception:
        try:
            if PRESENT not in forms:
                raise RuntimeError(f"the kernel of {trial.fusable.call.name} does not compile")
            return _timed(trial, forms, program, self.place)
        except Exception as error:
            return error


def _items(trial: Trial) -> Iterator[tuple[str, tuple[Item, ...]]]:
    """What is launched in each form; of the present one, what is launched behind the call, and before it."""
    one = trial.fusable
    if one.kernel is not None:
        yield PRESENT, (one.kernel,)
    if one.before():
        yield BEFORE, one.before()
    for tile in trial.tiles:
        yield tile.text(), (*one.before(tile), *one.items(tile))


def _run(entry: str, items: Sequence[Item]) -> KernelRun:
    run = run_of(entry, items)
    return kernel_run(run, [alone(item, rendered(item)) for item in computing(run)])


def _compiles(run: KernelRun, capability: int) -> bool:
    return all(_compiled(kernel, capability) for kernel in run.kernels)


def _compiled(kernel: TritonKernel, capability: int) -> bool:
    try:
        cubin(kernel, False, capability)
    except Exception as error:
        PLANS.info("a form of %s does not compile: %s", kernel.name, error)
        return False
    return True


def _never(*values: object) -> None:
    raise RuntimeError("operands that are timed begin at multiples of 16 bytes")


def _launching(entry: object, names: Sequence[str]) -> LaunchedForm:
    def launch(buffers: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        entry(*(buffers[name] for name in names))  # type: ignore[operator]
        return None

    return launch


def _with_call(trial: Trial, program: Program, before: LaunchedForm | None, after: LaunchedForm | None) -> LaunchedForm:
    """The kernels before the ATen call, that, and then the kernel behind it."""
    node, name = trial.fusable.call.node, trial.fusable.call.name
    places = {id(arg): place_of(program, arg) for arg in node.all_input_nodes}
    target: Any = node.target

    def call(buffers: Mapping[str, torch.Tensor]) -> torch.Tensor:
        def tensor(arg: fx.Node) -> torch.Tensor:
            place = places[id(arg)]
            assert place is not None
            (offset,) = _ints((place.offset,))
            return buffers[place.source].as_strided(_ints(place.shape), _ints(place.strides), offset)

        if before is not None:
            before(buffers)
        args = fx.node.map_arg(node.args, tensor)
        result: torch.Tensor = target(*args, **node.kwargs)
        if after is not None:
            after({**buffers, name: result})
        return result

    return call


@contextmanager
def _plain() -> Iterator[None]:
    """Without what the user's code may have around it."""
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
        yield


def _timed(trial: Trial, forms: dict[str, LaunchedForm], program: Program, device: torch.device) -> Times:
    """Seconds of a launch of each form whose results are those of the present one."""
    layouts = _layouts(trial, program)
    sizes = {name: _span(layout) * DTYPES[layout.dtype].itemsize for name, layout in layouts.items()}
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if sum(sizes.values()) > (free + cached) // SHARE_OF_FREE:
        raise RuntimeError("its operands take too much of the memory that is free")
    cold = [name for name in layouts if name in program.inputs]
    copies = _copies(sum(sizes[name] for name in cold), device)
    generator = torch.Generator(device).manual_seed(0)
    first = {name: _made(layout, device, generator) for name, layout in layouts.items()}
    sets = [first, *({**first, **{name: _copy(first[name]) for name in cold}} for _ in range(copies - 1))]
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            agreeing = _agreeing(trial, forms, first)
            count = _count(agreeing[PRESENT], first, copies)
            found = _rounds({name: _recorded(form, sets, count) for name, form in agreeing.items()})
    finally:
        stream.synchronize()  # launches may be on their way whatever happened, and operands' memory is given away next
    return {name: seconds / count for name, seconds in found.items()}


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for each device: cuBLAS keeps memory for every stream that it meets."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _layouts(trial: Trial, program: Program) -> dict[str, Layout]:
    """Those of all buffers that any form has."""
    one = trial.fusable
    kernels = (*one.before(), *([one.kernel] if one.kernel is not None else []))
    params = [*one.product.params, *(param for kernel in kernels for param in kernel.params)]
    found = {param.name: program.layouts[param.name] for param in params if param.name != one.call.name}
    found[one.call.name] = program.layouts[one.call.name]
    for tile in trial.tiles:
        added = one.added(tile, found[one.call.name].device)
        for name, layout in added.items():
            if name not in found or _span(layout) > _span(found[name]):
                found[name] = layout
    for node in one.call.node.all_input_nodes:
        place = place_of(program, node)
        if place is None:
            raise RuntimeError("an operand whose place is not known")
        found.setdefault(place.source, program.layouts[place.source])
    return found


def _span(layout: Layout) -> int:
    """Elements from the first to the last."""
    if layout.numel == 0:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(_ints(layout.shape), _ints(layout.strides), strict=True))


def _ints(sizes: Sequence[Size]) -> tuple[int, ...]:
    assert all(isinstance(n, int) for n in sizes)
    return tuple(sizes)  # type: ignore[arg-type]


def _made(layout: Layout, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """A tensor of the layout: random numbers, or zeros, which are places wherever places are asked for.

    Truths and integers of 8 bits are 0 or 1: they are masks and weights, and where they are places these are checked.
    """
    dtype = DTYPES[layout.dtype].torch
    flat = torch.zeros(_span(layout), dtype=dtype, device=device)
    if dtype.is_floating_point:
        flat.normal_(generator=generator)
    elif flat.itemsize == 1:
        flat.random_(0, 2, generator=generator)
    return flat.as_strided(_ints(layout.shape), _ints(layout.strides))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,))
    return flat.clone().as_strided(tensor.shape, tensor.stride())


def _copies(size: int, device: torch.device) -> int:
    """How many copies of so many bytes the cache does not hold."""
    if size == 0:
        return 1
    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(1, min(math.ceil(BEYOND_CACHE * cache / size) + 1, MOST_LAUNCHES, MOST_COPIED // size))


def _agreeing(
    trial: Trial, forms: dict[str, LaunchedForm], buffers: dict[str, torch.Tensor]
) -> dict[str, LaunchedForm]:
    """The forms that write what the present one does, or near that; each has run once then."""
    names = [param.name for param in trial.fusable.product.params if param.written]
    product = forms[PRESENT](buffers)
    assert product is not None and names
    wanted = {name: product if name == trial.fusable.call.name else buffers[name].clone() for name in names}
    found = {PRESENT: forms[PRESENT]}
    for label, form in forms.items():
        if label == PRESENT:
            continue
        for name in names:
            buffers[name].copy_(wanted[name] == 0)  # right nowhere, but for NaN
        form(buffers)
        if all(_is_near(buffers[name], wanted[name]) for name in names):
            found[label] = form
        else:
            PLANS.warning("%s in %s gives other numbers and is not used", trial.fusable.call.name, label)
    return found


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether few elements are elsewhere, of truths and integers others: some hang on a sum's last bits."""
    if not other.dtype.is_floating_point:
        return float((one == other).float().mean()) >= 1 - FAR_AWAY
    scale = float(other.float().abs().nan_to_num(0.0, 0.0, 0.0).mean())
    near = torch.isclose(one.float(), other.float(), rtol=NEAR, atol=NEAR * max(scale, 1e-30), equal_nan=True)
    return float(near.float().mean()) >= 1 - FAR_AWAY


def _count(form: LaunchedForm, buffers: dict[str, torch.Tensor], copies: int) -> int:
    """How many launches a recording has."""
    start, end = _event(), _event()
    start.record()
    form(buffers)
    end.record()
    end.synchronize()
    seconds = max(start.elapsed_time(end) / 1e3, 1e-6)
    return max(min(MOST_LAUNCHES, int(SPAN / seconds)), min(copies, 2))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _recorded(form: LaunchedForm, sets: Sequence[dict[str, torch.Tensor]], count: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for k in range(count):
            form(sets[k % len(sets)])
    finally:
        graph.capture_end()
    return graph


def _rounds(graphs: dict[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """The median seconds of each recording, all replayed in turns; of those that were far behind, what they took."""
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
        running = [name for name in running if name == PRESENT or statistics.median(found[name]) <= OUT * best]
        if time.perf_counter() - start > BUDGET:
            break
    return {name: statistics.median(times) for name, times in found.items()}
