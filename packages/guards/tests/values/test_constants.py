"""Constants: exact comparison, snapshots and keys agree, for generated values."""

import builtins
import math
from collections import OrderedDict, deque, namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_guards import GuardError, is_constant
from framesmith_guards.kinds.table import describe_expected
from framesmith_guards.values.constants import freeze, same_constant, typed_key, why_not_constant
from framesmith_guards.values.refs import describe

Point = namedtuple("Point", "x y")

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=True),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")]),
    st.complex_numbers(max_magnitude=2),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([b"", b"a"]),
    st.sampled_from([torch.float32, torch.float64, torch.device("cpu"), torch.strided, int, float, ...]),
)
hashable = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.lists(hashable, max_size=3).map(set),
        st.lists(hashable, max_size=3).map(frozenset),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3).map(OrderedDict),
        st.dictionaries(hashable, inner, max_size=3).map(getattr(builtins, "frozendict", dict)),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda pair: range(*pair)),
        st.tuples(inner, inner).map(lambda pair: slice(*pair)),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(values)
def test_a_value_is_the_same_as_its_snapshot(value):
    assert is_constant(value)
    frozen = freeze(value)
    assert same_constant(value, frozen) and same_constant(frozen, value)
    assert typed_key(value) == typed_key(frozen)


@settings(max_examples=300, deadline=None)
@given(values, values)
def test_keys_are_equal_exactly_for_the_same_constants(a, b):
    assert same_constant(a, b) == same_constant(b, a) == (typed_key(a) == typed_key(b))


@settings(max_examples=200, deadline=None)
@given(st.lists(values, max_size=3))
def test_snapshots_are_out_of_reach(value):
    frozen = freeze(value)
    value.append(1)
    assert len(frozen) == len(value) - 1


@settings(max_examples=300, deadline=None)
@given(st.floats() | st.just(-0.0), st.floats() | st.just(0.0))
def test_floats_compare_by_sign_and_value(a, b):
    expected = (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    assert same_constant(a, b) is bool(expected)


class Equal:
    def __eq__(self, other):
        raise AssertionError("user code ran")

    __hash__ = object.__hash__


class Text(str):
    pass


@pytest.mark.parametrize("value", [Equal(), Text("a"), torch.ones(1), [Equal()], {"a": (Equal(),)}, {Equal(): 1}])
def test_other_values_are_not_constants(value):
    assert "ID_MATCH" in why_not_constant(value)
    assert not same_constant(value, ["other"])
    with pytest.raises(GuardError, match="its == may run user code"):
        freeze(value)


def test_numpy_scalars():
    numpy = pytest.importorskip("numpy")
    assert same_constant(numpy.float32(1.5), numpy.float32(1.5))
    assert not same_constant(numpy.float32(1.5), numpy.float64(1.5))
    assert not same_constant(numpy.float32(0.0), numpy.float32(-0.0))
    assert typed_key(numpy.int32(3)) == typed_key(numpy.int32(3))


def test_named_tuples_with_their_own_equality_are_not_constants():
    class Odd(namedtuple("Odd", "x")):
        def __eq__(self, other):
            return True

        __hash__ = tuple.__hash__

    assert not is_constant(Odd(1))
    assert is_constant(Point(1, 2)) and freeze(Point([1], 2)) == Point([1], 2)


@pytest.mark.skipif(not hasattr(builtins, "sentinel"), reason="this CPython has no sentinels")
def test_a_sentinel_is_the_same_as_itself_alone():
    mark, other = builtins.sentinel("mark"), builtins.sentinel("mark")
    assert is_constant(mark) and freeze(mark) is mark
    assert same_constant(mark, mark) and not same_constant(mark, other)
    assert typed_key(mark) != typed_key(other)


@pytest.mark.skipif(not hasattr(builtins, "frozendict"), reason="this CPython has no frozendict")
def test_a_frozendict_is_no_dict_and_has_an_order():
    frozen = builtins.frozendict(a=1, b=[2])
    assert not same_constant(frozen, dict(frozen)) and not same_constant(frozen, builtins.frozendict(b=[2], a=1))
    assert freeze(frozen)["b"] is not frozen["b"]


@pytest.mark.parametrize(
    "value", [torch.float32, torch.device("cpu"), torch.strided, torch.channels_last, ..., None, 1.5]
)
def test_what_was_found_is_described_as_what_is_expected(value):
    assert describe(value) == describe_expected(value) == repr(value)
