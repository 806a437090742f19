"""The base of operators of our own: registration, rewrites of graphs, machine code, threads, the fallback to ATen.

An operator's folder has a rewrite that writes its calls into graphs, the renderer of its modules, its floors (sizes
below which ATen is faster), and launchers, which decline with `None` what ATen is to compute.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeGuard, TypeVar

import torch
from torch import fx
from torch.fx.node import Argument

from framesmith_aten.graphs.modules import new_module
from framesmith_aten.meta import Key
from framesmith_aten.table import BACKENDS_NAMESPACE
from framesmith_backends.launch.background import at_work, begin
from framesmith_backends.rewrite.replacing import Write, erase_unread, replaced
from framesmith_backends.target import Processor
from framesmith_guards.torch_adapter import OpOverload

Spec = TypeVar("Spec", bound=Hashable)

_library = torch.library.Library(BACKENDS_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]

#: The machine code of the operator that a node calls, perhaps still being made.
CODE: Key[Future[Any] | None] = Key("framesmith_machine_code")

#: The numbers that an entry takes behind its job: the extent that threads divide among them, and how many they are.
EXTENT, THREADS = ctypes.c_int64, ctypes.c_int32


class Code:
    """Machine code of one module, begun in the background; its entries run without the interpreter's lock."""

    def __init__(self, name: str, render: Callable[[], str], entries: Mapping[str, Sequence[Any]]) -> None:
        from framesmith_backends.launch.llvm.engine import engine_of

        self.name, self._entries = name, entries
        self.engine: Future[Any] = begin(lambda: engine_of(name, render()))

    @functools.cached_property
    def entries(self) -> dict[str, Callable[..., None]]:
        """The entries by name, functions of a job and their numbers; waits for the code where it is not there yet."""
        address = self.engine.result().get_function_address
        return {
            name: ctypes.CFUNCTYPE(None, ctypes.c_void_p, *numbers)(address(name))
            for name, numbers in self._entries.items()
        }

    @functools.cached_property
    def run(self) -> Callable[..., None]:
        """The first entry."""
        return next(iter(self.entries.values()))


class CodeCache(dict[Spec, Code]):
    """The machine code of one kind of operator, by the specification of a module: begun where it is first asked for.

    `entries` are the functions of a module, and what they take behind a job; `name` is that of files of machine code.
    Code that could not be made is not kept.
    """

    def __init__(
        self, name: str, render: Callable[[Spec, Processor], str], entries: Mapping[str, Sequence[Any]]
    ) -> None:
        super().__init__()
        self.name, self._render, self._entries = name, render, entries
        self._lock = threading.RLock()

    def __missing__(self, spec: Spec) -> Code:
        with at_work(), self._lock:
            if spec in self:
                return self[spec]
            target = processor()
            code = self[spec] = Code(self.name, lambda: self._render(spec, target), self._entries)
            code.engine.add_done_callback(lambda done: self._forget(spec) if done.exception() is not None else None)
        return code

    def _forget(self, spec: Spec) -> None:
        with self._lock:
            self.pop(spec, None)


def pending_code(gm: fx.GraphModule) -> list[Future[Any]]:
    """The machine code that the graph's first call waits for; it raises what failed there."""
    return [code for node in gm.graph.nodes if (code := CODE.get(node)) is not None]


def is_on_cpu(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a node's value is one tensor of the CPU, and not sparse."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided


def call_like(graph: fx.Graph, node: fx.Node, target: OpOverload, *args: Argument) -> fx.Node:
    """A call whose results are those of a node."""
    call = graph.call_function(target, args)
    call.meta = dict(node.meta)
    return call


def rewritten(
    gm: fx.GraphModule, instead: Mapping[fx.Node, Write], unread: Callable[[fx.Node], bool] | None = None
) -> fx.GraphModule:
    """The graph with other calls in place of nodes, and without `unread` ones; the same graph if there are none."""
    if not instead:
        return gm
    graph = replaced(gm.graph, instead)
    if unread is not None:
        erase_unread(graph, unread)
    return new_module(gm, graph)


def processor() -> Processor:
    """The processor that code is made for."""
    from framesmith_backends.launch.llvm.engine import machine

    return machine().target


def threads_for(work: int, grain: int, most: int = 1 << 16) -> int:
    """The number of threads for so much work, if each is to have about a `grain` of it; at most torch's."""
    return max(1, min(torch.get_num_threads(), most, -(-work // grain)))


def operator(
    schema: str,
    run: Callable[..., Any],
    shape: Callable[..., Any] | None = None,
    aten: Callable[..., Any] | None = None,
    key: str = "CPU",
    tags: Sequence[torch.Tag] = (),
) -> OpOverload:
    """Register the operator of a schema, which begins with its name, under a dispatch key.

    `run` computes it; where it returns None, `aten` does. `shape` gives results for tensors without elements; an
    operator without one cannot be traced.
    """
    name = schema.partition("(")[0]

    def either(*args: Any) -> Any:
        found = run(*args)
        return aten(*args) if found is None and aten is not None else found

    _library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    _library.impl(name, run if aten is None else either, key)  # type: ignore[no-untyped-call]
    if shape is not None:
        _library.impl(name, shape, "Meta")  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(torch.ops.framesmith_backends, name).default
    return made
