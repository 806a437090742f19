"""`torch.utils.checkpoint` in a trace: its function in place, nodes that name the checkpoint, or a break."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver import check, compiled
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import framesmith_frames as frames
from framesmith_aten.meta import CHECKPOINT

X = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.nn.Parameter(torch.ones(4))
LAYERS = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
NORM = torch.nn.BatchNorm1d(4)
MATMULS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

saved = functools.partial(checkpoint, use_reentrant=False)


def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in MATMULS else CheckpointPolicy.PREFER_RECOMPUTE


def every_second() -> Any:
    seen = {"matmuls": 0}

    def choose(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        seen["matmuls"] += op in MATMULS
        return op in MATMULS and seen["matmuls"] % 2 == 0

    return create_selective_checkpoint_contexts(choose)


def raises(x: Any) -> Any:
    def inner(x: Any) -> Any:
        y = x * W
        if x.dim() == 2:
            raise ValueError("in the function")
        return y

    try:
        return saved(inner, x)
    except ValueError as error:
        return x + len(error.args)


def captured_back(y: Any) -> Any:
    z = y.cos()
    return checkpoint(lambda y: (y.sin(), z), y, use_reentrant=True)[0]


def changes(x: Any) -> Any:
    y = x * W
    return saved(lambda y: (y * W).exp(), y).add_(1)


WHOLE: dict[str, Callable[[Any], Any]] = {
    "function": lambda x: saved(torch.sin, x * W),
    "module": lambda x: saved(LAYERS, x),
    "captured": lambda x: saved(lambda: (x * W).sin()),
    "keywords": lambda x: saved(lambda x, *, by: x * by, x, by=W),
    "structures": lambda x: saved(lambda d: {"b": [d["a"] * W, 3]}, {"a": x}),
    "nested": lambda x: saved(lambda y: saved(lambda z: (z * W).sin(), y.cos()) * y, x),
    "sequential": lambda x: checkpoint_sequential(LAYERS, 2, x, use_reentrant=False),
    "random": lambda x: saved(lambda y: F.dropout(y * W, 0.5), x),
    "options": lambda x: saved(torch.sin, x * W, determinism_check="none", early_stop=False),
    "without rng, nothing random": lambda x: saved(torch.sin, x * W, preserve_rng_state=False),
    "in no_grad": torch.no_grad()(lambda x: saved(lambda y: (y * W).sin(), x)),
    "no_grad inside": lambda x: saved(torch.no_grad()(lambda y: y * W), x),
    "autocast inside": lambda x: saved(torch.autocast("cpu", torch.bfloat16)(lambda y: y @ y.t() @ (y * W)), x),
    "reentrant": lambda x: checkpoint(lambda y: (y.sin(), y.argmax(), 3, None), x * W, use_reentrant=True),
    "its argument": lambda x: checkpoint(lambda y: (y, y.sin(), y), x * W, use_reentrant=True),
    "a leaf": lambda x: checkpoint(lambda y: y, W, use_reentrant=True) * x,
    "a view of its argument": lambda x: checkpoint(lambda y: (y.t().sin(), y.t()), x * W, use_reentrant=True),
    "list of operators": lambda x: saved(
        LAYERS, x, context_fn=functools.partial(create_selective_checkpoint_contexts, MATMULS)
    ),
    "policy": lambda x: saved(LAYERS, x, context_fn=lambda: create_selective_checkpoint_contexts(policy)),
    "policy of a maker": lambda x: saved(LAYERS, x, context_fn=every_second),
    "raises": raises,
    "result changed": changes,
    "own tensors changed": lambda x: saved(lambda y: (y * W).add_(1).relu_(), x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str, dynamic: bool) -> None:
    function = WHOLE[name]
    [graph, *_] = check(lambda x: function(x), X, dynamic=dynamic, fullgraph=True).graphs
    named = [node for node in graph.graph.nodes if CHECKPOINT.on(node)]
    assert bool(named) == (name not in ("in no_grad", "raises"))


def test_nodes_name_their_checkpoint() -> None:
    def function(x: Any) -> Any:
        y = x.cos()
        y = saved(lambda y: saved(lambda z: (z * W).sin(), y.exp()) * y, y)
        return checkpoint(torch.tanh, y, use_reentrant=True).relu()

    [graph, *_] = check(function, X).graphs
    found = {
        str(getattr(node.target, "__name__", node.target)): CHECKPOINT.get(node)
        for node in graph.graph.nodes
        if node.op in ("call_function", "call_method")
    }
    paths = {name: None if one is None else one.path for name, one in found.items()}
    assert paths == {"cos": None, "exp": (1,), "sin": (1, 2), "mul": (1,), "tanh": (3,), "relu": None}
    tanh = found["tanh"]
    assert tanh is not None and tanh.reentrant


def test_a_policy_is_asked_about_operators() -> None:
    [graph, *_] = check(WHOLE["list of operators"], X).graphs
    [saves] = {one.saves for node in graph.graph.nodes if (one := CHECKPOINT.get(node)) is not None}
    assert saves is not None
    assert saves(torch.ops.aten.mm.default, (X, X.t()), {}, X @ X.t())
    assert not saves(torch.ops.aten.sin.default, (X,), {}, X)
    assert not saves(torch.ops.aten.detach.default, (X,), {}, X)


def test_the_default_of_use_reentrant_warns_as_torch_does() -> None:
    function = lambda x: checkpoint(torch.sin, x * W)  # noqa: E731
    frames.reset()
    subject = compiled(function, fullgraph=True)
    said = []
    for call in (function, subject, subject):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(X)
        said.append([(str(one.message), one.category, one.filename) for one in caught])
    assert len(said[0]) == 1
    assert said == [said[0]] * 3


class Box:
    n = 0


BOX = Box()


def counted(x: Any) -> Any:
    BOX.n += 1
    return x * W


def changed_after(x: Any) -> Any:
    y = x * W
    z = saved(lambda y: y.sin(), y)
    y.add_(1)
    return z.detach()


def changed_within(x: Any) -> Any:
    return saved(lambda y: (y * W).exp().add_(1) * 2, x)


def written(y: Any) -> Any:
    return y.mul_(2) * W


def branches(x: Any) -> Any:
    return x.sin() if torch.is_grad_enabled() else x.sin() * 1


BREAKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "object": ("checkpoint-effect", lambda x: saved(counted, x)),
    "in grad": ("activation-checkpoint", torch.func.grad(lambda x: saved(torch.sin, x).sum())),
    "in vmap": ("activation-checkpoint", torch.vmap(lambda x: saved(torch.sin, x))),
    "argument": ("checkpoint-effect", lambda x: saved(written, x * 1)),
    "statistics": ("checkpoint-effect", lambda x: saved(NORM, x)),
    "changed after": ("checkpoint-input-changed", changed_after),
    "changed within": ("checkpoint-saved-changed", changed_within),
    "random numbers": (
        "checkpoint-random",
        lambda x: saved(lambda y: F.dropout(y * W), x, preserve_rng_state=False),
    ),
    "contexts": (
        "checkpoint-context",
        lambda x: saved(counted, x, context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext())),
    ),
    "debug": ("activation-checkpoint", lambda x: saved(torch.sin, x * W, debug=True)),
    "determinism": ("activation-checkpoint", lambda x: saved(torch.sin, x, determinism_check="wild")),
    "keywords of a reentrant one": (
        "activation-checkpoint",
        lambda x: checkpoint(torch.sin, x * W, use_reentrant=True, other=1),
    ),
    "operators that are none": (
        "activation-checkpoint",
        lambda x: saved(LAYERS, x, context_fn=functools.partial(create_selective_checkpoint_contexts, ["mm"])),
    ),
    "no argument with gradients": ("checkpoint-reentrant", lambda x: checkpoint(LAYERS, x, use_reentrant=True)),
    "grad mode": ("checkpoint-reentrant", lambda x: checkpoint(branches, x * W, use_reentrant=True)),
    "what it captures": ("checkpoint-reentrant", lambda x: captured_back(x * W)),
    "its argument changed": ("checkpoint-effect", lambda x: checkpoint(lambda y: y.add_(1), x * W, use_reentrant=True)),
    "one tensor twice": (
        "checkpoint-reentrant",
        lambda x: checkpoint(lambda y: (z := y.sin(), z), x * W, use_reentrant=True)[0],
    ),
    "a detached result": (
        "checkpoint-reentrant",
        lambda x: checkpoint(lambda y: (y.sin(), y.detach() + 1), x * W, use_reentrant=True)[0],
    ),
    "a structure": ("checkpoint-reentrant", lambda x: checkpoint(lambda y: [y * 2], x * W, use_reentrant=True)[0]),
    "history": (
        "tensor-autograd-state",
        lambda x: checkpoint(lambda y: y * 2 if (y * 2).requires_grad else y, x * W, use_reentrant=True),
    ),
    "print": ("print", lambda x: saved(lambda y: print("within") or y * W, x)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_breaks(name: str) -> None:
    kind, function = BREAKS[name]
    with pytest.raises(Exception, match=rf"\[{kind}\]"):
        compiled(lambda x: function(x), fullgraph=True)(X.clone())
    if name != "object":
        check(lambda x: function(x), X)


def test_an_effect_occurs_as_often_as_in_eager_mode() -> None:
    counts = []
    for call in (lambda x: saved(counted, x), compiled(lambda x: saved(counted, x))):
        BOX.n = 0
        for _ in range(3):
            call(X).sum().backward()
        counts.append(BOX.n)
    assert counts[0] == counts[1] > 3


def test_a_reentrant_one_without_gradients_warns_as_torch_does() -> None:
    function = lambda x: checkpoint(LAYERS, x, use_reentrant=True)  # noqa: E731
    frames.reset()
    subject = compiled(function, fullgraph=True)
    said = []
    for call in (function, subject, subject):
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            call(X)
        said.append([(str(one.message), one.category, one.filename, one.lineno) for one in caught])
    assert len(said[0]) == 1
    assert said == [said[0]] * 3
