"""Constants are shared only if they are interchangeable."""

import math

import pytest

from framesmith_bytecode.writing.constants import ConstantPool, constant_key, same_constant

DISTINCT = [0, False, 0.0, -0.0, 0j, -0j, complex(0, -0.0), "", b"", None, ..., (), (0,), (False,), (0.0,), (-0.0,),
            frozenset(), frozenset({0}), frozenset({False}), 1, True, 1.0, "1", b"1", ((0,),), ((0.0,),)]  # fmt: skip


def test_all_distinct():
    keys = {constant_key(value): value for value in DISTINCT}
    # -0j is complex(-0.0, -0.0), as is no other in the list
    assert len(keys) == len(DISTINCT)


@pytest.mark.parametrize("value", DISTINCT, ids=repr)
def test_equal_to_itself(value):
    assert same_constant(value, value)


def test_nan():
    nan = float("nan")
    assert same_constant(nan, nan)
    pool = ConstantPool([])
    assert math.isnan(pool.values[pool.index(nan)])


def test_pool_keeps_given_and_appends():
    pool = ConstantPool([None, 1, "a", 1])
    assert pool.index(1) == 1
    assert pool.index(1.0) == 4
    assert pool.index(True) == 5
    assert pool.index(int("1000000000")) == pool.index(int("1000000000")) == 6
    assert pool.values == [None, 1, "a", 1, 1.0, True, 1000000000]


def test_any_object_by_identity():
    one, other = [], []
    pool = ConstantPool([])
    assert pool.index(one) == 0
    assert pool.index(other) == 1
    assert pool.index(one) == 0
