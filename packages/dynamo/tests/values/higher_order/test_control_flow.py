"""Control flow is a node with bodies, `torch.cond` of a known condition the call of a branch; or it breaks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import check, compiled
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as mapped

from framesmith_aten.graphs import control_flow
from framesmith_dynamo.convert_frame.errors import BreakNotAllowed

Tensor = torch.Tensor
X = torch.linspace(-1, 2, 8)


def by_size(x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))


WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "size": by_size,
    "constant": lambda x: torch.cond(True, lambda x: x.sin(), lambda x: x.cos(), operands=(x,)),
    "without operands": lambda x: torch.cond(False, lambda: x.sin(), lambda: x.cos()),
    "nested": lambda x: torch.cond(0, by_size, lambda x: torch.cond(1.0, by_size, by_size, [x]), [x]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_a_known_condition(name: str, dynamic: bool) -> None:
    for size in (8, 3):
        check(WHOLE[name], X[:size], dynamic=dynamic, fullgraph=True)


NODES: dict[str, tuple[Any, Callable[[Tensor], Any]]] = {
    "cond": (control_flow.cond, lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))),
    "while": (control_flow.while_loop, lambda x: while_loop(lambda x: x.sum() > 1, lambda x: (x * 0.5,), (x,))),
    "scan": (control_flow.scan, lambda x: scan(lambda c, a: (c + a, c * a), x[0], x)),
    "map": (control_flow.scan, lambda x: mapped(lambda a, k: a * k, x, x.mean())),
    "associative": (control_flow.associative_scan, lambda x: associative_scan(torch.add, x, 0, combine_mode="generic")),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NODES)
def test_one_node(name: str, dynamic: bool) -> None:
    target, function = NODES[name]
    for given in (X, X[:5].requires_grad_(), -X):
        subject = check(lambda x: function(x), given, dynamic=dynamic, fullgraph=True)
        assert any(node.target is target for node in subject.graphs[-1].graph.nodes)


def returns_its_operand(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.cos(), (x,))


def changes_its_operand(x: Tensor) -> Any:
    return scan(lambda c, a: (c.add_(a), a + 1), x[0], x)


def has_another_type(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.int(), lambda x: x.cos(), (x,))


def appends(x: Tensor) -> Any:
    met = []
    return mapped(lambda a: met.append(1) or a * 2, x)


def under_grad(x: Tensor) -> Any:
    return torch.func.grad(lambda x: scan(lambda c, a: (c + a, c * a), x[0], x)[0].sum())(x.reshape(2, -1))


def raises(x: Tensor) -> Any:
    return mapped(lambda a: a / {}["none"], x)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (returns_its_operand, "control-flow-refused"),
        (changes_its_operand, "body-changes-tensor|control-flow-refused"),
        (has_another_type, "control-flow-refused"),
        (appends, "body-effect"),
        (under_grad, "control-flow-refused"),
        (raises, "body-raises"),
    ],
)
def test_a_break_by_name(function: Callable[[Tensor], Any], kind: str) -> None:
    with pytest.raises(BreakNotAllowed, match=kind):
        compiled(function, fullgraph=True)(X)
