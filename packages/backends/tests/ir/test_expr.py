"""Scalar expressions: interned, frozen, checked where they are built; malformed programs are refused."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from importlib.resources import files

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Const, Expr, Load, Op, children, cost, loads, transform, walk
from framesmith_backends.ir.ops import APPROXIMATE, OPS, OpRow, emitter, has_own
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.symbolic.index import Ix, Var, of
from framesmith_backends.ir.verify import Malformed, verify_program
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.render.llvm.ops import emit_op, functions
from framesmith_backends.render.triton.emit import operation
from framesmith_backends.target import CPU


def x() -> Expr:
    return Load("x", (of(Var("i", 5)),), "f32")


def test_cached_answers_are_the_same() -> None:
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


def types_of(row: OpRow) -> list[str]:
    computed = [one for one in DTYPES.values() if one.compute == one.name]
    return [one.name for one in computed if one.kind.replace("u", "i") in row.kinds]


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_every_emitter_that_a_row_names_is_there(row: OpRow) -> None:
    """LLVM lacks some for float64, Triton some functions; those nodes run as ATen calls."""
    source = files("framesmith_backends.launch.cuda").joinpath("triton_support.py").read_text()
    nodes = [*ast.walk(ast.parse(source))]
    support = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    support |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert row.cost >= 0 and set(row.derivative.split()) <= set(OPS)
    for dtype in types_of(row):
        given = [Value(f"%x{k}", DTYPES[dtype].register) for k in range(row.arity)]
        if row.name == "where":
            given[0] = Value("%x0", "i1")
        if emitter(row.llvm, dtype) is None:
            assert dtype == "f64"
        else:
            found = emit_op(Builder(), row.name, tuple(given), dtype)
            assert found.kind == ("i1" if row.result == "b1" else DTYPES[dtype].register)
        text = emitter(row.triton, dtype)
        if text is not None:
            assert set(re.findall(r"fs\.(\w+)", operation(row.name, ("a", "b", "c"), dtype))) <= support
    for dtype in ("f32", "f64", APPROXIMATE):
        assert (row.name in functions(dtype)) == has_own(row.llvm, dtype)


def test_broken_programs_are_found() -> None:
    program = lower_graph(trace(lambda a: (a * 2).sum(0), [torch.randn(4, 5)]), CPU).program
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
