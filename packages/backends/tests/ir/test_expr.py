"""Scalar expressions: interned, frozen, checked where they are built; malformed programs are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tracing import trace

from framesmith_backends.ir.expr import Const, Expr, Load, Op, children, cost, loads, transform, walk
from framesmith_backends.ir.ops import OPS
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.symbolic.index import Ix, Var, of
from framesmith_backends.ir.verify import Malformed, verify_program
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.ops import COMPARISONS, ELEMENTARY, PLAIN
from framesmith_backends.render.triton.emit import CALLS, INFIX


def x() -> Expr:
    return Load("x", (of(Var("i", 5)),), "f32")


def test_what_was_asked_before_is_answered_alike() -> None:
    y = Load("y", (of(Var("i", 5)),), "f32")
    both = Op("exp", x()) * y + x()
    for _ in range(2):
        found = loads(both)
        assert found == [node for node in walk(both) if isinstance(node, Load)] == [x(), y]
        found.clear()  # a list of the caller's own
        assert cost(both) == cost(both, both) > cost(x()) == 0
        assert children(both) == both.args


def test_same_construction_same_object() -> None:
    assert x() + 1.0 is x() + 1.0
    assert Const(0.0, "f32") is not Const(-0.0, "f32")
    assert Const(1, "i64") is not Const(True, "b1")


def test_nodes_are_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        x().dtype = "f64"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("adds", (1.0, 2.0), "unknown"),
        ("add", (1.0,), "takes 2"),
        ("sqrt", (1,), "does not take i64"),
        ("where", (1.0, 1.0, 1.0), "condition"),
    ],
)
def test_bad_operations_are_refused_when_built(name: str, args: tuple[float, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Op(name, *(Const(a, "i64" if isinstance(a, int) else "f32") for a in args))


def test_operands_must_agree() -> None:
    with pytest.raises(TypeError, match="one type"):
        Op("add", Const(1.0, "f32"), Const(1.0, "f64"))


def test_integers_wrap_as_constants() -> None:
    assert Const(300, "u8").value == 44
    assert Const(200, "i8").value == -56


def test_walk_gives_each_node_once_operands_first() -> None:
    y = x() * 2.0
    seen = list(walk(y + y))
    assert len(seen) == len(set(seen))
    assert seen.index(y) < seen.index(y + y)


def test_transform_shares_what_it_keeps() -> None:
    root = x() + 1.0
    assert transform(root, lambda e: None) is root


def test_every_operation_has_a_row_in_each_renderer() -> None:
    special = {"max", "min", "idiv", "shr", "where", "put", "neg", "not", "abs", "isnan"}
    for name, row in OPS.items():
        for dtype, functions in ELEMENTARY.items():
            unknown = dtype == "f64" and not row.float64
            known = name in PLAIN or name in COMPARISONS or name in functions or name in special
            assert known or unknown, (name, dtype)
            assert not unknown or name not in functions, name
        assert (name in INFIX or name in CALLS or name in special) == row.on_gpus, name


def test_broken_programs_are_found() -> None:
    program = lower_graph(trace(lambda a: (a * 2).sum(0), [torch.randn(4, 5)])).program
    verify_program(program)
    name = next(iter(program.defs))
    for change, message in (
        ({"body": Load("nowhere", (Ix(0),), "f32")}, "before it is defined"),
        ({"body": Const(1.0, "f64")}, "layout"),
        ({"domain": ()}, "not in its domain"),
        ({"body": Load(program.inputs[0], (Ix(9), Ix(0)), "f32")}, "may read"),
    ):
        broken: Program = replace(program, defs={**program.defs, name: replace(program.defs[name], **change)})
        with pytest.raises(Malformed, match=message):
            verify_program(broken)
