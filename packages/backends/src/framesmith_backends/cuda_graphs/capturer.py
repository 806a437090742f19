"""CUDA graph capture of the launches on a CUDA device: the capturer of `captured_graph.py`. Note [Capturer]

Note [Capturer] (docs/design/gpu/0019)
Nothing is launched while a graph is captured; memory comes from a pool of the graph's own. A capture needs besides:

- A stream that is not the default one. It waits for the current stream, and is waited for, since torch's random
  generators keep seed and offset in memory that they fill on the stream of the capture.
- No garbage collection, which may free events and other graphs, and workspaces of cuBLAS that are its own.
- An end, also where it fails. torch leaves its allocators and generators in the state of a capture then, which
  `_recover` ends; the graph object is kept for good, because the allocators may ask it still.

Replays of one device come one after the other, on whatever streams: seeds and static inputs are shared.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framesmith_aten.contract import BoxedFn
from framesmith_backends.torch_adapter import SWITCHES, float32_precision, unstable

#: torch's functions for states that its public interface does not reach.
_cuda: Any = torch.cuda  # parts of it have no types

#: Only this thread must keep off what cannot be captured.
_ERRORS = "thread_local"
#: Graphs whose capture has failed.
_FAILED: list[torch.cuda.CUDAGraph] = []


class CudaCapturer:
    """Captures on one CUDA device, one capture at a time."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self._settings = _switches()

    def busy(self) -> bool:
        if torch.cuda.current_device() == self.device.index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self.device):
            return torch.cuda.is_current_stream_capturing()

    def settings(self) -> tuple[object, ...]:
        return tuple([switch() for switch in self._settings])

    def make_room(self) -> None:
        torch.cuda.empty_cache()

    def capture(
        self, run: BoxedFn, inputs: list[Any], buffers: Sequence[torch.Tensor]
    ) -> tuple[Sequence[Any], CudaCapture]:
        state = _state(self.device.index)
        current = torch.cuda.current_stream(self.device)
        stream = state.stream_of_captures
        _wait(stream, current, state.last)
        with torch.cuda.device(self.device):
            _cuda.current_blas_handle()  # made before the capture, in which it could not be
            with torch.cuda.stream(stream), _undisturbed(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # so it is where no tensor has elements
                graph = torch.cuda.CUDAGraph()
                results = self._captured(graph, run, inputs)
        _wait(current, stream)
        return results, CudaCapture(graph, [*buffers], state)

    def _captured(self, graph: torch.cuda.CUDAGraph, run: BoxedFn, inputs: list[Any]) -> Sequence[Any]:
        pool = torch.cuda.graph_pool_handle()
        ended = False
        try:
            graph.capture_begin(pool=pool, capture_error_mode=_ERRORS)
            try:
                results = run(inputs)
            finally:
                graph.capture_end()
                ended = True
        except BaseException:
            if not ended:
                self._recover(graph, pool)
            raise
        return results

    def _recover(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Ends what a capture that could not be ended has left: see Note [Capturer]."""
        _FAILED.append(graph)
        with contextlib.suppress(RuntimeError):  # it was ended
            unstable.cuda_endAllocateToPool(self.device.index, pool)
            unstable.cuda_releasePool(self.device.index, pool)
        with contextlib.suppress(RuntimeError):
            another = torch.cuda.CUDAGraph()  # the generators take its end for that of the failed one
            another.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode=_ERRORS)
            try:
                torch.zeros(1, device=self.device)
            finally:
                another.capture_end()


@dataclass(slots=True)
class CudaCapture:
    """A captured graph, and the buffers it reads."""

    graph: torch.cuda.CUDAGraph
    buffers: list[torch.Tensor]
    state: DeviceState
    stream: torch.cuda.Stream | None = None
    raw: int = -1

    def ready(self) -> None:
        raw = unstable.cuda_getCurrentRawStream(self.state.index)
        if raw == self.raw == self.state.raw:
            return
        stream = torch.cuda.current_stream(self.state.index)
        _wait(stream, self.stream, self.state.last)
        for buffer in self.buffers:
            buffer.record_stream(stream)
        self.stream = self.state.last = stream
        self.raw = self.state.raw = raw

    def replay(self) -> None:
        self.graph.replay()


@dataclass(slots=True)
class DeviceState:
    """The stream of a device on which graphs are captured, and the one on which the last replay was."""

    index: int
    stream_of_captures: torch.cuda.Stream
    last: torch.cuda.Stream | None = None
    raw: int = -1


@functools.cache
def _state(index: int) -> DeviceState:
    return DeviceState(index, _cuda.Stream(index))


def _wait(stream: torch.cuda.Stream, *others: torch.cuda.Stream | None) -> None:
    """Have later launches on the stream wait for earlier ones on the others."""
    for other in dict.fromkeys(others):
        if other is not None and other != stream:
            stream.wait_stream(other)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without garbage collection, with workspaces of cuBLAS of its own: see Note [Capturer]."""
    enabled = gc.isenabled()
    gc.disable()
    unstable.cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        unstable.cuda_clearCublasWorkspaces()
        if enabled:
            gc.enable()


def _switches() -> list[Callable[[], object]]:
    """The functions that return ATen's settings of computing on a CUDA device."""
    found = filter(None, (getattr(unstable, name.lstrip("_")) for name in SWITCHES))
    return [*found, float32_precision("matmul"), float32_precision("conv"), float32_precision("rnn")]
