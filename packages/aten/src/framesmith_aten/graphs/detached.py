"""Graphs kept as plain metadata, without nodes and fakes, until they are needed again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith_aten.symbolic import has_symbols, is_symbolic
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode

VALUE, STACK = "val", "stack_trace"

#: Types of metadata that hold no part of the graph.
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class _At:
    """Stands for a node: its position in the graph."""

    position: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for a fake: its layout, and the index of its storage."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class _Node:
    """Stands for a node: the arguments that create it. `notes` are its metadata but for value and stack trace."""

    name: str
    op: str
    target: Any
    args: Any
    kwargs: Any
    type: Any
    notes: tuple[tuple[str, Any], ...]
    has_value: bool
    value: Any
    stack: int


class DetachedGraph:
    """A graph without nodes. `rehydrate` makes an equal one: names, metadata, values that share memory."""

    def __init__(
        self, nodes: Sequence[_Node], mode: FakeTensorMode | None, storages: Sequence[int], stacks: Sequence[str]
    ) -> None:
        self._nodes = tuple(nodes)
        self._mode = mode
        self._storages = tuple(storages)
        self._stacks = zlib.compress(json.dumps(stacks).encode())

    def rehydrate(self) -> fx.Graph:
        """Return an equal graph; no mode that is active (a tracer of a backward pass) sees it made."""
        with unstable.disable_current_modes():
            return self._made()

    def _made(self) -> fx.Graph:
        graph = fx.Graph()
        stacks = json.loads(zlib.decompress(self._stacks))
        storages = [torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage() for size in self._storages]
        made: list[fx.Node] = []
        for one in self._nodes:
            args, kwargs = (_mapped(part, lambda at: made[at.position], _At) for part in (one.args, one.kwargs))
            node = graph.create_node(one.op, one.target, args, kwargs, one.name, one.type)
            node.meta.update(one.notes)
            if one.has_value:
                node.meta[VALUE] = _mapped(one.value, lambda value: self._fake(value, storages), _Tensor)
            if one.stack >= 0:
                node.meta[STACK] = stacks[one.stack]
            made.append(node)
        return graph

    def _fake(self, one: _Tensor, storages: Sequence[torch.UntypedStorage]) -> torch.Tensor:
        assert self._mode is not None
        meta = torch.empty(0, dtype=one.dtype, device="meta")
        meta.set_(storages[one.storage], one.offset, one.shape, one.strides)
        fake: torch.Tensor = FakeTensor(self._mode, meta, one.device)
        return fake.requires_grad_() if one.requires_grad else fake


def detach_graph(graph: fx.Graph) -> DetachedGraph | None:
    """Return the graph as metadata; None for symbolic sizes, and for values that have no description.

    Other holders of the graph keep it unchanged.
    """
    positions: dict[fx.Node, _At] = {}
    values = _Values()
    stacks: dict[str, int] = {}
    nodes: list[_Node] = []
    for position, node in enumerate(graph.nodes):
        notes = tuple((key, value) for key, value in node.meta.items() if key not in (VALUE, STACK))
        if not all(isinstance(leaf, _PLAIN) for _, value in notes for leaf in unstable.tree_leaves(value)):
            return None
        value = node.meta.get(VALUE)
        if not values.take(value) or any(map(is_symbolic, unstable.tree_leaves((node.args, node.kwargs)))):
            return None
        args, kwargs = (_mapped(part, positions.__getitem__, fx.Node) for part in (node.args, node.kwargs))
        stack = node.meta.get(STACK)
        at = -1 if stack is None else stacks.setdefault(stack, len(stacks))
        kept = _mapped(value, values.described, torch.Tensor)
        nodes.append(
            _Node(node.name, node.op, node.target, args, kwargs, node.type, notes, VALUE in node.meta, kept, at)
        )
        positions[node] = _At(position)
    return DetachedGraph(nodes, values.mode, values.sizes, [*stacks])


class _Values:
    """Describes the fakes of a graph, which belong to one mode; `sizes` are the bytes of their storages."""

    def __init__(self) -> None:
        self.mode: FakeTensorMode | None = None
        self.sizes: list[int] = []
        self._known: dict[int, int] = {}

    def take(self, value: Any) -> bool:
        """Whether the value can be described; its mode becomes the mode of all."""
        for leaf in unstable.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                if type(leaf) is not FakeTensor or (self.mode is not None and leaf.fake_mode is not self.mode):
                    return False
                self.mode = leaf.fake_mode
                if leaf.layout is not torch.strided or leaf.is_quantized or has_symbols(leaf):
                    return False
                if leaf.is_conj() or leaf.is_neg() or leaf.is_inference() or leaf.constant is not None:
                    return False
            elif not isinstance(leaf, _PLAIN):
                return False
        return True

    def described(self, fake: torch.Tensor) -> _Tensor:
        storage = fake.untyped_storage()
        at = self._known.setdefault(storage._cdata, len(self.sizes))
        if at == len(self.sizes):
            self.sizes.append(storage.nbytes())
        layout = (*fake.shape,), fake.stride()
        return _Tensor(at, int(fake.storage_offset()), *layout, fake.dtype, fake.device, fake.requires_grad)


def _mapped(value: Any, change: Callable[[Any], Any], kind: type) -> Any:
    """Return a copy of the value with every instance of `kind` in it changed, in plain containers."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        parts = [_mapped(item, change, kind) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_mapped(item, change, kind) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, change, kind) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*[_mapped(item, change, kind) for item in (value.start, value.stop, value.step)])
    return value
