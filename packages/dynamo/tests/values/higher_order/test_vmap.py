"""`torch.vmap` and the derivatives of `torch.func` in a trace: one node around a graph of the body, or a break."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import check, compiled
from torch import fx

from framesmith_aten.graphs.transforms import differentiated, pulled_back, pushed_forward, vmapped, with_pullback

X = torch.arange(12.0).reshape(3, 4)
W = torch.nn.Parameter(torch.ones(4))
NODES = (vmapped, differentiated, with_pullback, pulled_back, pushed_forward)

WHOLE: dict[str, Callable[[Any], Any]] = {
    "inside": lambda x: torch.vmap(lambda a: a.sin() * 2)(x) + 1,
    "itself": torch.vmap(lambda a: a.sum()),
    "captured": lambda x: torch.func.vmap(lambda a: a @ W)(x),
    "nested": torch.vmap(torch.vmap(lambda a: a * 2)),
    "outer tensor in an inner body": torch.vmap(lambda a: torch.vmap(lambda b: b * a.sum())(a)),
    "structures": lambda x: torch.vmap(lambda d: {"b": d["a"] + 1}, in_dims=({"a": 1},), out_dims=1)({"a": x}),
    "the same for all": torch.vmap(lambda a: (a * 2, torch.ones(2))),
    "none": torch.vmap(lambda a: (a * 2, 3, W), out_dims=(0, None, None)),
    "shape": torch.vmap(lambda a: a.reshape(a.shape[0] // 2, -1) + a.dim()),
    "own tensors changed": torch.vmap(lambda a: (a * 2).add_(1)),
    "gradients": torch.func.grad(lambda a: (a.sin() * W).sum()),
    "gradients and values": torch.func.grad_and_value(lambda a: ((a * a).sum(), {"a": a * 2}), has_aux=True),
    "gradients of arguments": lambda x: torch.func.grad(lambda p, y: (p["w"] * y).sum(), (0, 1))({"w": x}, x + 1),
    "gradients of gradients": torch.func.grad(lambda a: torch.func.grad(lambda b: (b**3).sum())(a).sum()),
    "gradients of each": torch.vmap(torch.func.grad(lambda a: (a**3).sum())),
    "gradients in no_grad": torch.no_grad()(torch.func.grad(lambda a: (a * W * a).sum())),
    "pulled back": lambda x: torch.func.vjp(lambda a: a.sin() * W, x)[1](x.cos()),
    "pushed forward": lambda x: torch.func.jvp(lambda a: {"b": a.sin() * W}, (x,), (x.cos(),)),
    "jacobian": lambda x: torch.func.jacrev(lambda a: a.sin() * W)(x[0]),
    "jacobian, forward": lambda x: torch.func.jacfwd(lambda a: a.sin() * W)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda a: (a.sin() * W).sum())(x[0]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_one_node(name: str, dynamic: bool) -> None:
    function = WHOLE[name]
    subject = check(lambda x: function(x), X, dynamic=dynamic, fullgraph=True)
    graph = subject.graphs[-1]  # torch registers pytrees when a fake is first used: a process's first trace is repeated
    assert any(node.target in NODES for node in graph.graph.nodes)


def test_the_body_is_a_graph_of_its_own() -> None:
    *_, graph = check(lambda x: torch.vmap(lambda a: (a + W).exp())(x.cos()), X).graphs
    assert {node.target for node in graph.graph.nodes if node.op == "call_method"} == {"cos"}
    [body] = [module for module in graph.children() if isinstance(module, fx.GraphModule)]
    assert [node.op for node in body.graph.nodes] == ["placeholder"] * 2 + ["call_function", "call_method", "output"]


class Box:
    n = 0


BOX = Box()


def counted(a: Any) -> Any:
    BOX.n += 1
    return a * 2


def in_no_grad(a: Any) -> Any:
    with torch.no_grad():
        return a.sin()


def written(a: Any) -> Any:
    a[0] = 0
    return a


BREAKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "object": ("body-effect", torch.vmap(counted)),
    "mode": ("body-changes-mode", torch.vmap(in_no_grad)),
    "argument": ("body-changes-tensor", torch.vmap(written)),
    "error": ("operation-failed", torch.vmap(lambda a: a.view(99))),
    "result": ("body-raises", torch.vmap(lambda a: 3)),
    "stride": ("asks-batched-tensor", torch.vmap(lambda a: a * (a + 1).stride(0))),
    "offset": ("asks-batched-tensor", torch.vmap(lambda a: a * (a + 1).storage_offset())),
    "history": ("asks-batched-tensor", torch.vmap(lambda a: a * 2 if (a * W).requires_grad else a)),
    "truth": ("asks-batched-tensor", torch.vmap(lambda a: a * 2 if a[0] > 3 else a)),
    "view": ("body-differs", torch.vmap(lambda a: a * 2 if a._is_view() else a)),
    "gradient of no scalar": ("function-not-differentiated", torch.func.grad(lambda a: a * 2)),
    "history of a gradient's argument": (
        "asks-batched-tensor",
        torch.func.grad(lambda a: (a * 2).sum() if a.requires_grad else a.sum()),
    ),
    "level": ("asks-transform-level", torch.vmap(lambda a: a * (torch._C._functorch.maybe_current_level() or 5))),
}


@pytest.mark.parametrize("name", BREAKS)
def test_breaks(name: str) -> None:
    kind, function = BREAKS[name]
    with pytest.raises(Exception, match=rf"\[{kind}\]"):
        compiled(lambda x: function(x), fullgraph=True)(X.clone())
    if name != "object":
        check(lambda x: function(x), X)


def test_a_result_that_torch_would_expand_out_of_bounds() -> None:
    """Eager mode reads and writes outside of its list of sizes there, so only the break is checked."""
    with pytest.raises(Exception, match=r"\[operation-failed\].*the same for all"):
        compiled(lambda x: torch.vmap(lambda a: W, out_dims=-1)(x), fullgraph=True, dynamic=True)(X)


def test_an_object_is_changed_once_for_a_call() -> None:
    BOX.n = 0
    subject = compiled(lambda x: torch.vmap(counted)(x))
    for call in range(3):
        assert torch.equal(subject(X), X * 2)
        assert BOX.n == call + 1


KINDS = frozenset({list, OrderedDict, int})


def annotated(x: Any) -> Any:
    def inner(a: Callable[[int], int] | None = None, b: list[int] | None = None) -> Any:
        return x * 2 if a is None and b is None else x

    return inner()


def united(x: Any) -> Any:
    made = list[int] | None
    return (x + 1, made == (list[int] | None), (None | Callable[..., int]) is None)  # type: ignore[operator]


def test_unions_and_sets_of_classes() -> None:
    exec(compile(ANNOTATED, __file__, "exec"), names := dict(globals()))
    assert len(check(names["evaluated"], X, fullgraph=True).graphs) == 1
    assert len(check(annotated, X, fullgraph=True).graphs) == 1
    assert len(check(united, X, fullgraph=True).graphs) == 1
    assert len(check(lambda x: x + (list in KINDS) + (str in KINDS) * 2, X, fullgraph=True).graphs) == 1


#: Annotations evaluated when the inner function is created, as in torch's pytrees.
ANNOTATED = """
def evaluated(x):
    def inner(a: Callable[[Any], bool] | None = None, b: None | Callable[[], int] = None):
        return x * 3
    return inner()
"""
