"""Shape conditions: the text and sympy agree; torch's relations become guards."""

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy import functions as torch_functions

from framesmith_guards import Guard, GuardError, LocalSource, ShapeEnvSource, ShapeExpr, compile_guards
from framesmith_guards.kinds.shapes import HELPERS, call_expr, text

A, B = sympy.symbols("a b", integer=True, positive=True)

numbers = st.one_of(st.sampled_from([A, B]), st.integers(-4, 9).map(sympy.Integer))


def grow(inner):
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: sympy.Max(*p)),
        st.tuples(inner, inner).map(lambda p: sympy.Min(*p)),
        inner.map(lambda e: torch_functions.FloorDiv(e, sympy.Integer(3))),
        inner.map(lambda e: torch_functions.PythonMod(e, sympy.Integer(4))),
        inner.map(lambda e: sympy.Mod(e, 5)),
        inner.map(lambda e: sympy.Abs(e)),
        inner.map(lambda e: torch_functions.ModularIndexing(e, sympy.Integer(2), sympy.Integer(3))),
    )


expressions = st.recursive(numbers, grow, max_leaves=6)
relations = st.tuples(
    st.sampled_from([sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]),
    expressions,
    expressions,
    st.sampled_from([sympy.Integer(1), sympy.Rational(1, 2), sympy.Rational(2, 3)]),
).map(lambda row: row[0](row[1], row[2] * row[3]))
conditions = st.one_of(
    relations,
    st.tuples(relations, relations).map(lambda p: sympy.And(*p)),
    st.tuples(relations, relations).map(lambda p: sympy.Or(*p)),
    relations.map(sympy.Not),
)


@settings(max_examples=150, deadline=None)
@given(conditions, st.integers(1, 40), st.integers(1, 40))
def test_text_and_sympy_agree(condition, a, b):
    shape = ShapeExpr.of(condition, {A: LocalSource("a"), B: LocalSource("b")})
    numbers = {"a": a, "b": b}
    assert shape.holds(*(numbers[name] for name, _ in shape.symbols)) == bool(condition.subs({A: a, B: b}))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (sympy.ceiling(A / 2), 4),
        (sympy.floor(A / 2), 3),
        (torch_functions.CeilDiv(A, B), 4),
        (torch_functions.CleanDiv(A, sympy.Integer(7)), 1),
        (torch_functions.IntTrueDiv(A, B), 3.5),
        (torch_functions.ToFloat(A), 7.0),
        (torch_functions.Where(sympy.Gt(A, B), A, B), 7),
        (torch_functions.PowByNatural(A, B), 49),
        (torch_functions.PowByNatural(sympy.Integer(-3), B), 9),
        (call_expr("exact_pow", [sympy.Float(-3), B]), 9.0),
        (torch_functions.TruncToInt(torch_functions.IntTrueDiv(A, B)), 3),
        (sympy.Piecewise((A, sympy.Lt(A, 3)), (B, True)), 2),
        (torch_functions.Max(A, B), 7),
        (torch_functions.Min(A, B), 2),
        (sympy.oo, float("inf")),
    ],
)
def test_operators(expr, expected):
    assert eval(text(expr, {"a": "a", "b": "b"}), {**HELPERS, "a": 7, "b": 2}) == expected


def test_scalars_in_conditions():
    x, k = sympy.symbols("x k")
    expr = sympy.And(sympy.Gt(x, 1.5), sympy.Eq(k, 2))
    condition = ShapeExpr.of(expr, {x: LocalSource("x"), k: LocalSource("k")})
    program = compile_guards([Guard(ShapeEnvSource(), "SHAPE", condition)], ("x", "k"))
    assert program((2.0, 2), test_operators) and not program((1.5, 2), test_operators)
    assert program.explain((1.0, 2), test_operators).endswith("found L['k'] = 2, L['x'] = 1.0")


def test_unknown_symbols_and_operators_are_refused():
    with pytest.raises(GuardError, match="no source for the symbol b"):
        ShapeExpr.of(sympy.Gt(A, B), {A: LocalSource("x")})
    with pytest.raises(GuardError, match="no shape operator"):
        ShapeExpr.of(sympy.Gt(sympy.zeta(A), 0, evaluate=False), {A: LocalSource("x")})


def dynamic_program(evaluate):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    from framesmith_guards import TensorSpec
    from framesmith_guards.symbolic_guards import shape_guards, to_torch

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    reals = {"x": torch.randn(6, 4), "y": torch.randn(12, 4)}
    fakes = {}
    for name, real in reals.items():
        source = to_torch(LocalSource(name))
        fakes[name] = mode.from_tensor(real, source=source, symbolic_context=context)
    with mode, torch._guards.tracing(torch._guards.TracingContext(mode)):  # torch's own code asks for it
        evaluate(fakes["x"], fakes["y"])
    guards = shape_guards(env, [(LocalSource(name), fake) for name, fake in fakes.items()])
    for name, real in reals.items():
        guards.append(Guard(LocalSource(name), "TENSOR_MATCH", TensorSpec.of(real, like=fakes[name])))
    return compile_guards(guards, ("x", "y"))


def test_a_shape_env_becomes_guards():
    def evaluate(x, y):
        torch.cat([x, x]) + y
        if x.shape[0] > 4:
            return x
        return y

    program = dynamic_program(evaluate)

    def hit(*shapes):
        return program(tuple(map(torch.empty, shapes)), test_operators)

    assert hit((6, 4), (12, 4)) and hit((8, 4), (16, 4))
    assert not hit((8, 4), (15, 4)) and not hit((4, 4), (8, 4)) and not hit((8, 5), (16, 5))
    assert not program((torch.empty(4, 8).t(), torch.empty(16, 4)), test_operators)
    assert "size(0)" in program.explain((torch.empty(4, 4), torch.empty(8, 4)), test_operators)


def test_zero_and_one_are_not_dynamic():
    program = dynamic_program(lambda x, y: x.sum() + y.sum())

    def hit(*shapes):
        return program(tuple(map(torch.empty, shapes)), test_operators)

    assert hit((3, 4), (5, 4)) and not hit((1, 4), (5, 4)) and not hit((3, 4), (0, 4))


def test_sources_are_looked_up_not_gone_through():
    """One condition for each of thousands of numbers, and a source for each."""

    class LookedUp(dict):
        def __iter__(self):
            raise AssertionError("gone through")

        items = keys = values = __iter__

    for sources in (LookedUp(a=LocalSource("a")), LookedUp({A: LocalSource("a")})):
        assert ShapeExpr.of(sympy.Gt(A, 2), sources).symbols == (("a", LocalSource("a")),)
