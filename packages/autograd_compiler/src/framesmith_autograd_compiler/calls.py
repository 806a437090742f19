"""The calls in a captured backward pass.

A *pure* call computes tensors from tensors and may be traced and compiled. An *opaque* call runs user code (hooks, a
custom function's backward); it runs uncompiled, in order. A write to a leaf's `.grad` is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import fx

from framesmith_aten.meta import Key
from framesmith_autograd_compiler import user_calls
from framesmith_autograd_compiler.torch_adapter import unstable

Tensors = Sequence[torch.Tensor | None]
Env = dict[fx.Node, Any]

#: The engine's name of the derivative that writes to a leaf's `.grad`.
ACCUMULATE_GRAD: Final = "AccumulateGrad"


InputKind = Literal["input", "size", "scalar", "hook", "packed", "number"]
"""Tensors; sizes and scalars that the engine has seen change; hooks and contexts; packed saved tensors; floats."""


@dataclass(frozen=True)
class PassInput:
    """An input of the pass that a placeholder stands for: the one at `index` of its kind."""

    kind: InputKind
    index: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.index}"

    def placeholder(self, graph: fx.Graph) -> fx.Node:
        """Return a new placeholder of the graph for it."""
        node = graph.placeholder(self.name)
        PASS_INPUT.set(node, self)
        return node


#: Placeholders of recorded passes: what they stand for.
PASS_INPUT: Final[Key[PassInput]] = Key("pass_input")


class NodeCall:
    """A pure call of an autograd node's derivative: `call(grads, *arguments) -> gradients`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = self.__name__ = name
        self.__module__ = "nodes"  # FX names callees by module and name in the text of graphs
        self.function = function

    def __call__(self, grads: Tensors, *args: Any) -> Any:
        return self.function(list(grads), *args)

    def __repr__(self) -> str:
        return self.name


class Evaluation:
    """A pure call of `EvaluatesBackward.evaluate_backward`."""

    def __init__(self, cls: Any) -> None:
        self.name = self.__name__ = cls.__name__
        self.__module__ = "nodes"
        self.cls = cls

    def __call__(self, grads: Tensors, saved: Sequence[torch.Tensor]) -> Any:
        return self.cls.evaluate_backward(list(saved), list(grads))


def is_accumulation(node: fx.Node) -> bool:
    """Whether the node writes to a leaf's `.grad`."""
    return isinstance(node.target, NodeCall) and node.target.name == ACCUMULATE_GRAD


def add(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    """Return the sum of two gradients of one value; either may be absent."""
    if first is None or second is None:
        return second if first is None else first
    return torch.add(first, second)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the gradient of a result that nothing depends on."""
    return torch.zeros(shape, dtype=dtype, device=device)


def copy_slices_prologue(grad: torch.Tensor, base: Any, view: Any) -> tuple[torch.Tensor, ...]:
    """Return, for an in-place mutation of a view, a copy of the base's gradient, its view, and a copy of the view.

    `base` and `view` are (sizes, strides, storage offset).
    """
    result = grad.new_empty_strided(base[0], base[1])
    result.copy_(grad)
    part = result.as_strided(view[0], view[1], view[2] - base[2])
    return result, part, part.clone(memory_format=torch.contiguous_format)


def copy_slices_epilogue(
    needed: Sequence[bool], result: torch.Tensor, grads: Tensors, part: torch.Tensor
) -> list[torch.Tensor | None]:
    """Return the gradients after the view's derivative: the first is written into its view of the base's gradient."""
    out: list[torch.Tensor | None] = []
    for index, (wanted, grad) in enumerate(zip(needed, grads, strict=True)):
        if index == 0 and wanted and grad is not None:
            part.copy_(grad)
            out.append(result)
        else:
            out.append(grad if wanted else None)
    return out


def call_cpp_hook(hook: int, grad: torch.Tensor | None) -> Any:
    """Call a C++ hook of a tensor, by the engine's number for it."""
    return unstable.engine.call_cpp_tensor_pre_hooks(hook, grad)


def call_leaf_hook(hook: Callable[..., Any], variable: torch.Tensor) -> None:
    """Call a hook that runs after a leaf received its gradient."""
    if hook(variable) is not None:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def call_unpack_hook(hook: Callable[..., Any], packed: Any) -> torch.Tensor:
    """Call the user's hook that unpacks a saved tensor."""
    result = hook(packed)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"a saved tensor's unpack hook must give a tensor, got {type(result).__name__}")
    return result


class _Context:
    """A custom function's context for its backward, with the saved tensors already unpacked."""

    def __init__(self, real: Any, saved: Sequence[torch.Tensor]) -> None:
        self.__dict__["real"] = real
        self.__dict__["saved_tensors"] = tuple(saved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)


def call_backward(ctx: Any, saved: Sequence[torch.Tensor], grads: Tensors) -> Tensors:
    """Call a custom function's backward (`torch.autograd.Function`), or its `vjp` where it defines that."""
    cls = ctx._forward_cls
    function = cls.backward if cls.vjp is torch.autograd.Function.vjp else cls.vjp
    result = function(_Context(ctx, saved), *grads)
    return result if isinstance(result, tuple) else (result,)


#: Calls of user code whose results other calls read: they keep their position. Writes to `.grad`, and the hooks that
#: follow them, are kinds of their own (see `schedule`); every other call in a captured graph is pure.
OPAQUE: frozenset[Any] = frozenset(
    {
        user_calls.call_tensor_hook,
        user_calls.call_pre_hook,
        user_calls.call_post_hook,
        call_cpp_hook,
        call_unpack_hook,
        call_backward,
    }
)


def call_node(node: fx.Node, env: Env) -> Any:
    """Return the result of a recorded call; a derivative without any gradient has absent results."""
    target: Any = node.target
    if isinstance(target, NodeCall) and not any(_present(arg, env) for arg in node.args[:1]):
        return _ABSENT
    return target(*operands_of(node, env))


def operands_of(node: fx.Node, env: Env) -> list[Any]:
    """Return the values that a recorded call takes."""
    return [_load(arg, env) for arg in node.args]


class _Absent:
    """The results of a derivative that got no gradient."""

    def __getitem__(self, index: int) -> None:
        return None


_ABSENT: Final = _Absent()


def _present(value: Any, env: Env) -> bool:
    """Whether any gradient among a derivative's operands is present; without one, its results are absent."""
    if isinstance(value, (list, tuple)):
        return any(_present(item, env) for item in value)
    return isinstance(value, fx.Node) and env[value] is not None


def _load(value: Any, env: Env) -> Any:
    """Return a node's operands with values in place of nodes, in plain lists and tuples."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, list):
        return [_load(item, env) for item in value]
    if isinstance(value, tuple):
        loaded = [_load(item, env) for item in value]
        return type(value)(loaded) if type(value) in (tuple, torch.Size) else value
    return value
