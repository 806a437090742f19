"""Native entries of CUDA kernels, launched through a driver that stands in for the real one: no GPU is needed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from test_symbolic import PROGRAMS

from framesmith_backends import CudaBackend
from framesmith_backends.cuda import TritonStages, kernel_runs, stages_of
from framesmith_backends.ir.symbolic.size import Symbol, evaluate

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton is not installed, or interprets",
)

CUDA = CudaBackend()
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, *[ctypes.c_uint] * 7, *[ctypes.c_size_t] * 3)
GLOBAL = 0  # a mode of captures
ONE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t))
LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t, *[ctypes.c_size_t] * 6)
ALLOW = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * 4)
FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t, ctypes.c_char_p)


class StandIn:
    """A driver that notes launches: (name of the function, programs, threads, words of the parameters)."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int, int, list[int]]] = []
        self.shared: list[int] = []
        self.allowed: list[tuple[int, ...]] = []
        self.names: list[str] = []
        self.words, self.device, self.error, self.mode = 0, 0, 0, GLOBAL
        functions: dict[str, Any] = {
            "cuLaunchKernel": LAUNCH(self.launch), "cuCtxGetDevice": ONE(self.current),
            "aoti_torch_get_current_cuda_stream": STREAM(self.stream),
            "cuLibraryLoadData": LOAD(self.load), "cuLibraryGetKernel": FIND(self.find),
            "cuKernelSetAttribute": ALLOW(self.allow), "cuThreadExchangeStreamCaptureMode": ONE(self.exchange),
        }  # fmt: skip
        self.functions = functions

    def launch(self, function: int, grid: int, *rest: int) -> int:
        threads, stream, parameters = rest[2], rest[6], rest[7]
        assert (rest[:2], rest[3:5], stream) == ((1, 1), (1, 1), 77)
        self.shared.append(rest[5])
        slots = (ctypes.c_size_t * self.words).from_address(parameters)
        words = [ctypes.c_size_t.from_address(place).value for place in slots]
        self.launches.append((self.names[function - 1], grid, threads, words))
        return self.error

    def current(self, device: Any) -> int:
        device[0] = self.device
        return 0

    def stream(self, device: int, stream: Any) -> int:
        stream[0] = 77
        return 0

    def exchange(self, mode: Any) -> int:
        self.mode, mode[0] = mode[0], self.mode
        return 0

    def load(self, library: Any, code: int, *rest: int) -> int:
        library[0] = 1
        if self.mode == GLOBAL:  # as if a graph were captured
            return 900
        return 0 if ctypes.string_at(code, 4) == b"\x7fELF" else 200

    def allow(self, *what: int) -> int:
        self.allowed.append(what)
        return 0

    def find(self, kernel: Any, library: int, name: bytes) -> int:
        self.names.append(name.decode())
        kernel[0] = len(self.names)
        return 0


class Library:
    """Functions by name, as ctypes has a library's."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)


def entries(stages: TritonStages, functions: dict[str, Any], instead: Callable[..., None]) -> dict[str, Any]:
    from framesmith_backends.launch.cuda.driver import Device, Driver
    from framesmith_backends.launch.cuda.native import native_entries

    runs = kernel_runs(stages)
    others = {run.step.entry: instead for run in runs}
    return native_entries(runs, others, Device(0, 90, Driver([Library(functions)])))  # type: ignore[list-item]


def never(*values: object) -> None:
    raise AssertionError("it is launched natively")


def norm_and_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    shown = torch.softmax(x + y, -1)
    return shown, (shown * y).sum(0)


def test_kernels_are_launched_in_order_on_their_buffers() -> None:
    stages = CUDA.explain(trace(norm_and_sum, [torch.randn(6, 40), torch.randn(6, 40)]))
    (run,) = kernel_runs(stages)
    stand_in = StandIn()
    call = entries(stages, stand_in.functions, never)[run.step.entry]
    buffers = [torch.zeros(240) for _ in run.step.buffers]
    for k, (kernel, slots) in enumerate(zip(run.kernels, run.positions, strict=True)):
        stand_in.words = len(slots) + 2
        call(*buffers)
        name, grid, threads, words = stand_in.launches.pop(k)
        assert (name, grid, threads) == (kernel.name, kernel.grid, 32 * kernel.warps)
        assert words == [*(buffers[at].data_ptr() for at in slots), 0, 0]
        stand_in.launches.clear()
    assert len(run.kernels) >= 2


def test_buffers_within_a_run_lie_in_its_arena() -> None:
    def steps(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x.softmax(0).softmax(1)
        return x

    stages = CUDA.explain(trace(steps, [torch.randn(64, 40)]))
    (run,) = kernel_runs(stages)
    slots, (x, result, arena) = run.step.positions, [torch.zeros(1 << 16, dtype=torch.uint8) for _ in range(3)]
    inner = {one.name: arena.data_ptr() + one.offset for one in run.step.inner}
    assert len(run.step.buffers) == 3 and len(inner) >= 4 and len({*inner.values()}) < len(inner)
    stand_in = StandIn()
    stand_in.words = 2
    entries(stages, stand_in.functions, never)[run.step.entry](x, result, arena)
    found = {place: inner[name] for name, place in slots.items() if name in inner}
    found |= {at: tensor.data_ptr() for at, tensor in enumerate((x, result, arena))}
    assert [words for _, _, _, words in stand_in.launches] == [[found[at] for at in own[:2]] for own in run.positions]


def test_each_variant_has_its_own_shared_memory() -> None:
    """The one for aligned sizes turns what it writes in wider chunks: it wrote beyond the memory of the other."""
    from framesmith_backends.launch.cuda.cubins import cubin

    stages = CUDA.explain(trace_symbolic(lambda x: (x.sum(0), x * 2, x.long()), [torch.randn(64, 32)]))
    (run,) = kernel_runs(stages)
    (kernel,) = run.kernels
    needed = [cubin(kernel, aligned, 90).shared for aligned in (False, True)]
    assert needed[0] < needed[1]
    stand_in = StandIn()
    call = entries(stages, stand_in.functions, never)[run.step.entry]
    for rows in (60, 64):
        numbers = [rows if n.hint == 64 else 32 for n in run.step.numbers if isinstance(n, Symbol)]
        call(*[torch.zeros(1 << 14) for _ in run.step.buffers], *numbers)
    assert stand_in.shared == needed


def test_the_driver_is_set_up_for_kernels_with_much_shared_memory() -> None:
    from framesmith_backends.autotune.matmuls import MatmulTuner
    from framesmith_backends.ir.fused.matmul import TileShape

    class Forced(MatmulTuner):
        def __call__(self, found: Any, program: Any) -> dict[str, TileShape]:
            return {one.call.name: TileShape(128, 128, 64, 8, 3) for one in found}

    inputs = [torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16()]
    stages = stages_of(trace(lambda x, w: (x @ w).relu(), inputs), choose=Forced())
    (run,) = kernel_runs(stages)
    stand_in = StandIn()
    stand_in.words = 3
    call = entries(stages, stand_in.functions, never)[run.step.entry]
    call(*(torch.zeros(1 << 15) for _ in run.step.buffers))
    ((name, grid, threads, _),) = stand_in.launches
    assert (grid, threads) == (4, 256) and name == run.kernels[0].name
    (shared,) = stand_in.shared
    assert shared >= 96 << 10 and stand_in.allowed == [(8, shared, 1, 0)]


def test_runs_without_entries_are_launched_otherwise() -> None:
    stages = CUDA.explain(trace(norm_and_sum, [torch.randn(6, 40), torch.randn(6, 40)]))
    (run,) = kernel_runs(stages)
    stand_in, met = StandIn(), []
    call = entries(stages, stand_in.functions, lambda *values: met.append(values))[run.step.entry]
    buffers = [torch.zeros(240) for _ in run.step.buffers]
    odd = torch.zeros(241)[1:]
    call(*buffers[:-1], odd)
    stand_in.device = 1
    call(*buffers)
    assert [values[-1] for values in met] == [odd, buffers[-1]] and not stand_in.launches
    with pytest.raises(TypeError, match="not a dense"):
        call(*buffers[:-1], 3)


def test_an_error_of_the_driver_is_raised() -> None:
    stages = CUDA.explain(trace(norm_and_sum, [torch.randn(6, 40), torch.randn(6, 40)]))
    (run,) = kernel_runs(stages)
    stand_in = StandIn()
    call = entries(stages, stand_in.functions, never)[run.step.entry]
    stand_in.error = 719
    with pytest.raises(RuntimeError, match="CUDA error 719"):
        call(*(torch.zeros(240) for _ in run.step.buffers))


@pytest.mark.parametrize("name", ["pointwise", "softmax of gaps", "counts of numbers"])
def test_numbers_of_the_call_make_grids_and_choose_variants(name: str) -> None:
    (program,) = [p for p in PROGRAMS if p.name == name]
    stages = CUDA.explain(trace_symbolic(program.function, program.inputs(3, 64)))
    for run in kernel_runs(stages):
        stand_in = StandIn()
        call = entries(stages, stand_in.functions, never)[run.step.entry]
        buffers = [torch.zeros(1 << 16) for _ in run.step.buffers]
        for numbers in ([3, 64], [0, 5], [5, 900], [16, 32]):
            given = dict(zip(run.step.numbers, numbers * 2, strict=False))
            values = {symbol: value for symbol, value in given.items() if isinstance(symbol, Symbol)}
            stand_in.launches.clear()
            call(*buffers, *given.values())
            wanted = []
            for kernel in run.kernels:
                form = (
                    kernel if kernel.longer is None or evaluate(kernel.row, values) <= kernel.block else kernel.longer
                )
                if evaluate(form.grid, values) > 0:
                    wanted.append((form.name, evaluate(form.grid, values)))
            assert [(name, grid) for name, grid, _, _ in stand_in.launches] == wanted


def test_a_grid_of_more_programs_than_a_launch_goes_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.render.llvm import launches
    from framesmith_backends.render.triton import kernel

    monkeypatch.setattr(kernel, "MOST_PROGRAMS", 3)
    monkeypatch.setattr(launches, "MOST_PROGRAMS", 3)
    stages = CUDA.explain(trace(lambda x: torch.softmax(x, -1), [torch.randn(8, 40)]))
    (run,) = kernel_runs(stages)
    stand_in = StandIn()
    stand_in.words = len(run.positions[0]) + 1
    call = entries(stages, stand_in.functions, never)[run.step.entry]
    call(*(torch.zeros(320) for _ in run.step.buffers))
    assert [(grid, words[-1]) for _, grid, _, words in stand_in.launches] == [(3, 0), (3, 3), (2, 6)]


def test_sources_are_read_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as Triton reads them by Python's own parser, in the one place that is guarded."""
    import ast

    from triton.runtime.jit import JITCallable

    from framesmith_backends.launch.cuda import triton_support

    inside, most = [], []

    def parse(self: Any) -> Any:
        inside.append(self)
        time.sleep(0.01)
        most.append(len(inside))
        inside.pop()
        return ast.parse("def kernel(): pass")

    monkeypatch.setattr(JITCallable, "parse", parse)
    triton_support.read_one_at_a_time()
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: JITCallable.parse(None), range(8)))) == 8
    assert most == [1] * 8


def test_kernels_with_more_shared_memory_than_a_gpu_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.launch.cuda import cubins

    stages = CUDA.explain(trace(lambda x: x * 2, [torch.randn(7)]))
    metadata = SimpleNamespace(name="kernel", shared=150 << 10)
    monkeypatch.setattr(cubins, "compiled", lambda *_: SimpleNamespace(metadata=metadata, asm={"cubin": b"code"}))
    monkeypatch.setattr(cubins.storage, "read", lambda name: None)
    monkeypatch.setattr(cubins.storage, "write", lambda name, content: None)
    (kernel,) = stages.kernels
    assert cubins.cubin(kernel, False, 80).shared == cubins.cubin(kernel, False, 90).shared == 150 << 10
    for capability in (86, 89):
        with pytest.raises(ValueError, match=f"sm_{capability} has {99 << 10} for a launch"):
            cubins.cubin(kernel, False, capability)


def test_code_for_aligned_numbers_is_that_of_kernels_with_the_same_ones() -> None:
    """The source does not say which numbers were divisible while tracing; code that takes more of them for so reads
    whole vectors at addresses that are not aligned."""
    from framesmith_backends.launch.cuda.cubins import cubins

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.t() + y

    kernels = []
    for columns in (48, 41):
        gm = trace_symbolic(function, [torch.rand(64, columns), torch.rand(columns, 64)])
        (kernel,) = CUDA.explain(gm).kernels
        kernels.append(kernel)
    assert kernels[0].source == kernels[1].source and kernels[0].aligned != kernels[1].aligned
    many, few = (one.code for one in cubins([(kernel, True) for kernel in kernels], 80))
    assert many != few
    general = [one.code for one in cubins([(kernel, False) for kernel in kernels], 80)]
    assert general[0] == general[1]
