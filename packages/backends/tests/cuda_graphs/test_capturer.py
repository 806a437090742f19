"""CUDA graphs: the capturer's calls in their order, and on a real device, where there is one, everything."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from framesmith_backends import CudaBackend
from framesmith_backends.cuda_graphs import captured_graph, capturer
from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
from framesmith_backends.cuda_graphs.capturer import CudaCapturer
from tools.warm_process import run_program

real = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def test_nothing_of_cuda_is_loaded_by_the_backend() -> None:
    code = (
        "import sys, framesmith_backends.cuda as cuda; cuda.backend\n"
        "names = ['triton', *(f'framesmith_backends.cuda_graphs.{one}' for one in ('capturer', 'captured_graph'))]\n"
        "print([name for name in names if name in sys.modules])"
    )
    assert run_program(code).stdout == "[]\n"


# The capturer, with a stand-in for torch.cuda


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """The parts of torch.cuda that the capturer uses; it notes what happens."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails = False
        self.side, self.main, self.other = (Stream(name, self.log) for name in ("side", "main", "other"))
        self.current = self.main
        outer = self

        class CUDAGraph:
            def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
                outer.log.append(f"begin {pool} {capture_error_mode} on {outer.current.name}")

            def capture_end(self) -> None:
                outer.log.append("end")
                if outer.fails:
                    outer.fails = False
                    raise RuntimeError("operation failed due to a previous error during capture")

            def replay(self) -> None:
                outer.log.append(f"replay on {outer.current.name}")

        self.CUDAGraph = CUDAGraph

    def Stream(self, index: int) -> Stream:
        return self.side

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def current_stream(self, device: object) -> Stream:
        return self.current

    def current_blas_handle(self) -> None:
        self.log.append("handle")

    def graph_pool_handle(self) -> str:
        return "pool"

    def _cuda_clearCublasWorkspaces(self) -> None:
        self.log.append("clear")

    def _cuda_endAllocateToPool(self, index: int, pool: object) -> None:
        self.log.append("allocations end")

    def _cuda_releasePool(self, index: int, pool: object) -> None:
        self.log.append("release")

    def _cuda_getCurrentRawStream(self, index: int) -> int:
        return id(self.current)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(capturer, "_cuda", fake)
    for name in (
        "cuda_endAllocateToPool",
        "cuda_releasePool",
        "cuda_getCurrentRawStream",
        "cuda_clearCublasWorkspaces",
    ):
        monkeypatch.setattr(capturer.unstable, name, getattr(fake, f"_{name}"))
    monkeypatch.setattr(capturer, "_switches", list)
    real_zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device: real_zeros(*size))
    capturer._state.cache_clear()
    yield fake
    capturer._state.cache_clear()
    capturer._FAILED.clear()


def test_a_capture_has_a_stream_a_pool_and_workspaces_of_its_own(fake: FakeCuda) -> None:
    enabled: list[bool] = []

    def run(inputs: list[Any]) -> list[Any]:
        enabled.append(gc.isenabled())
        fake.log.append("run")
        return inputs

    results, capture = CudaCapturer(0).capture(run, [1], [])
    assert results == [1] and enabled == [False] and gc.isenabled()
    assert fake.log == [
        "side waits for main", "handle", "clear", "begin pool thread_local on side", "run", "end", "clear",
        "main waits for side",
    ]  # fmt: skip
    fake.log.clear()
    for _ in range(2):
        capture.ready()
        capture.replay()
    with fake.stream(fake.other):
        capture.ready()
        capture.replay()
        another = CudaCapturer(0).capture(run, [1], [])[1]
        fake.log.clear()
        another.ready()
    assert fake.log == []
    another.ready()
    capture.ready()
    assert fake.log == ["main waits for other", "main waits for other"]


def test_a_capture_that_fails_is_ended_everywhere(fake: FakeCuda) -> None:
    def run(inputs: list[Any]) -> list[Any]:
        fake.fails = True
        raise ValueError("operation not permitted")

    with pytest.raises(RuntimeError, match="previous error") as raised:
        CudaCapturer(0).capture(run, [], [])
    assert "operation not permitted" in captured_graph._first_line(captured_graph._first_raised(raised.value, None))
    assert fake.current is fake.main and gc.isenabled() and len(capturer._FAILED) == 1
    assert fake.log[3:] == [
        "begin pool thread_local on side", "end", "allocations end", "release",
        "begin pool thread_local on side", "end", "clear",
    ]  # fmt: skip


def test_an_error_of_the_graph_leaves_nothing_to_recover(fake: FakeCuda) -> None:
    def run(inputs: list[Any]) -> list[Any]:
        raise ValueError("of the graph")

    with pytest.raises(ValueError, match="of the graph"):
        CudaCapturer(0).capture(run, [], [])
    assert fake.log[-3:] == ["begin pool thread_local on side", "end", "clear"] and not capturer._FAILED


# On a real device

CUDA = CudaBackend()


def compiled(
    function: Callable[..., Any], inputs: list[Any], mode: str = "reduce-overhead", **how: Any
) -> CapturedGraph:
    gm = make_fx(function, tracing_mode=how.get("tracing_mode", "fake"))(*inputs)
    run = CUDA.compile(gm, [], how.get("role", "inference"), {"mode": mode})
    assert isinstance(run, CapturedGraph)
    return run


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(list(found), list(expected))


@real
def test_an_mlp_is_replayed_on_a_real_device() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x @ w + b, -1)
        return y, (y * y).sum(0)

    x, w, b = (torch.randn(size, device="cuda") for size in ((64, 32), (32, 48), (48,)))
    run = compiled(function, [x, w, b])
    held = []
    for _ in range(12):
        x = torch.randn(64, 32, device="cuda")
        results = run([x, w, b])
        close(results, function(x, w, b))
        held.append((results, function(x, w, b)))
    for found, expected in held:
        close(found, expected)
    assert run.counts.captured == captured_graph.MOST_CAPTURES + 1 and run.counts.plain == 1
    del held, found, results
    replayed = run.counts.replayed
    for _ in range(5):
        close(run([x, w, b]), function(x, w, b))
    assert run.counts.replayed == replayed + 5


@real
def test_random_numbers_are_eagers_on_a_real_device() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, True) + torch.rand_like(x)

    x = torch.ones(1000, device="cuda")
    run = compiled(function, [x])
    torch.cuda.manual_seed(3)
    found = [run([x])[0].clone() for _ in range(5)]
    after = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(3)
    plain = CUDA.compile(make_fx(function, tracing_mode="fake")(x), [])
    expected = [plain([x])[0].clone() for _ in range(5)]
    close(found, expected)
    assert torch.equal(after, torch.cuda.get_rng_state())
    assert run.counts.replayed == 4


@real
def test_inputs_are_written_to_on_a_real_device() -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        total = x + state
        shown = total.relu()
        state.copy_(total)
        return shown

    run = compiled(function, [torch.ones(8, device="cuda"), torch.ones(8, device="cuda")])
    state, expected = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    kept = []
    for step in range(10):
        if step > 5:
            state = state.clone()
            kept.append(state)
        x = torch.randn(8, device="cuda")
        kept.append(x)
        close([run([x, state])[0], state], [function(x, expected), expected])
    assert run.counts.replayed >= 6


@real
def test_dynamic_shapes_on_a_real_device() -> None:
    x = torch.randn(6, 5, device="cuda")
    run = compiled(lambda x: torch.softmax(x * 2, -1), [x], tracing_mode="symbolic")
    kept = []  # no input comes at the address of an earlier one, where it would be read
    for _ in range(4):
        for rows in (2, 3, 7, 11):
            x = torch.randn(rows, 5, device="cuda")
            kept.append(x)
            close(run([x]), [torch.softmax(x * 2, -1)])
    assert run.counts.captured == 4 and run.counts.replayed == 12


@real
def test_a_failed_capture_leaves_the_device_as_it_was_on_a_real_device() -> None:
    x = torch.randn(16, device="cuda")
    run = compiled(lambda x: x + 1, [x])
    works = run.run

    def synchronises(args: list[Any]) -> Any:
        result = works(args)
        result[0].sum().item()
        return result

    run.run = synchronises
    torch.cuda.manual_seed(1)
    torch.rand(3, device="cuda")
    stream = torch.cuda.current_stream()
    for _ in range(4):
        close(run([x]), [x + 1])
    assert run.counts.replayed == 0 and torch.cuda.current_stream() == stream
    torch.rand(3, device="cuda")  # the generator is out of the capture
    torch.empty(3, pin_memory=True)
    other = compiled(lambda x: torch.rand_like(x) * x, [x])
    for _ in range(3):
        other([x])
    assert other.counts.replayed == 2
    gc.collect()
    torch.cuda.synchronize()


@real
def test_streams_wait_for_each_other_on_a_real_device() -> None:
    x = torch.randn(1 << 20, device="cuda")
    run = compiled(lambda x: x.sin().flip(0) * 2, [x])
    streams = [torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()]
    sums = []
    for step in range(30):
        stream = streams[step % 3]
        torch.cuda.synchronize() if step == 0 else None
        with torch.cuda.stream(stream):
            x.record_stream(stream)
            (y,) = run([x])
            torch.cuda._sleep(1_000_000)
            sums.append(y.sum())
            del y
    torch.cuda.synchronize()
    for total in sums:
        torch.testing.assert_close(total, (x.sin() * 2).sum(), rtol=1e-4, atol=0.1)
    assert run.counts.captured == 1


@real
def test_threads_have_their_own_results_on_a_real_device() -> None:
    x = torch.randn(512, device="cuda")
    run = compiled(lambda x: torch.softmax(x, 0) * x, [x])
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.full((512,), float(number), device="cuda")
                for _ in range(100):
                    close(run([x]), [torch.softmax(x, 0) * x])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    assert run.counts.replayed > 0


@real
def test_calls_in_a_users_capture_are_part_of_it_on_a_real_device() -> None:
    x = torch.randn(64, device="cuda")
    run = compiled(lambda x: x * 2 + 1, [x])
    for _ in range(3):
        run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run([x])
    x.fill_(5)
    graph.replay()
    assert torch.equal(y, torch.full((64,), 11.0, device="cuda"))


@real
def test_memory_comes_back_on_a_real_device() -> None:
    x = torch.randn(1 << 22, device="cuda")

    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    before = used()
    run = compiled(lambda x: x.sin().flip(0) * 2, [x])
    for _ in range(4):
        (y,) = run([x])
    assert run.counts.captured >= 1 and used() > before
    del run
    assert torch.allclose(y, x.sin().flip(0) * 2)  # results outlive the function
    del y
    assert used() <= before + (4 << 20)


@real
def test_captures_leave_each_others_results_on_a_real_device() -> None:
    """Those of a graph, for two sizes, while results of the last calls are held."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.softmax(x.sin().flip(0).cumsum(0), -1)
        return x

    x = torch.randn(256, 64, device="cuda", dtype=torch.float64)  # sums of float32 in another order differ too much
    run = compiled(function, [x], tracing_mode="symbolic")
    held: list[Any] = []
    for step in range(16):
        x = torch.randn(256 - step % 2, 64, device="cuda", dtype=torch.float64)
        held.append((run([x]), [function(x)]))
        for found, expected in held:
            close(found, expected)
        del held[: -2 - step % 3]
    assert run.counts.replayed >= 8


@real
def test_matmuls_before_and_after_are_right_on_a_real_device() -> None:
    a, b = (torch.randn(257, 257, device="cuda", dtype=torch.float16) for _ in range(2))
    run = compiled(lambda a, b: (a @ b).relu() @ b, [a, b])
    for _ in range(5):
        close(run([a, b]), [(a @ b).relu() @ b])
        torch.mm(b, a)
        torch.cuda.empty_cache()
    assert run.counts.replayed == 4
