"""Assumptions about Python data are checked at every call: other data has another entry."""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled

import framesmith_frames as frames

Pt = collections.namedtuple("Pt", "x y")
Other = collections.namedtuple("Other", "x y")
X = torch.arange(6.0).reshape(2, 3)
PROGRAMS: list[Any] = []


def program(*calls: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(pytest.param(fn, calls, id=fn.__name__))
        return fn

    return register


@program({"a": 1, "b": 2}, {"b": 2, "a": 1}, {}, {"a": 1})
def key_order(d):
    return list(d), [k for k in d if k != "z"]


@program({"x": [{"y": 1}]}, {"x": [{"y": 2}, 3]}, {"x": ({"y": 1},)}, {"q": 1})
def nested(d):
    return d["x"][0]["y"] if "x" in d else None


@program([1], (1,), {1: 2}, "a", 5, collections.OrderedDict(a=1), set(), {3})
def types(v):
    return isinstance(v, (list, tuple)), len(v) if hasattr(v, "__len__") else None, bool(v)


@program([], [0], {}, 0, 0.0, -0.0, "", None, False, ())
def truth(v):
    return "yes" if v else "no"


@program(1, 1.0, True, 0.0, -0.0, float("nan"), 1 + 0j)
def numbers(v):
    return v + 1, v == 1, repr(v)


@program(([1], [1]), ([1], [1.0]), ([1, 2], [1]), ((1,), (1,)), ([True], [1]), ([[1]], [[1]]))
def equality(pair):
    a, b = pair
    return a == b, a < b, a is b


@program((1, 2), (1, 2, 3), ([1], 2), ("a",))
def unpacking(t):
    a, *b = t
    return a, b, t


@program(({1: "a"}, 1), ({1: "a"}, True), ({1: "a"}, 1.0), ({1: "a"}, 2), ({(1, 2): 3}, (1, 2)), ({"a": None}, "a"))
def lookups(pair):
    d, k = pair
    return d.get(k, "none"), k in d


@program(collections.deque([1]), collections.deque([1], 1), collections.deque([2, 3]))
def deques(d):
    d.append(9)
    return d[0], d.maxlen, d


@program({1}, {1, 2}, set(), frozenset({1}), {True})
def sets(s):
    return 1 in s, len(s), s | {5} == {1, 5}


@program({}, {"n": 3}, {"l": [1]}, {"n": 1, "l": []})
def mutations(d):
    d["n"] = d.get("n", 0) + 1
    d.setdefault("l", []).append(len(d))
    return d


@program(collections.defaultdict(int), collections.defaultdict(float), collections.defaultdict(int, q=4))
def factories(d):
    d["q"] += 1
    return d


@program(range(3), range(1, 3), range(0), [1, 2])
def ranges(r):
    return list(r), len(r), r[0] if r else None


@program(slice(1, None), slice(None, None, -1), slice(0, 2), 1, -1)
def slices(s):
    return [1, 2, 3, 4][s]


@program(Pt(1, 2), Other(1, 2), Pt(1, 3))
def named_tuples(p):
    return p.x, type(p).__name__, p == (1, 2)


@program([X], [X, X], [X.double(), X], (X,), [X[:1]])
def tensors(items):
    return [t.shape for t in items], str(sum(items))


@program(X.shape, (2, 3), torch.Size([2]))
def sizes(s):
    return s[0], s.numel() if isinstance(s, torch.Size) else None


@pytest.mark.parametrize(("fn", "calls"), PROGRAMS)
def test_other_data_gets_eager_results(fn: Callable[..., Any], calls: tuple[Any, ...]) -> None:
    frames.reset()
    subject = compiled(fn, recompile_limit=len(calls))
    for value in calls * 2:
        argument, again = copy.deepcopy(value), copy.deepcopy(value)
        assert repr((subject(argument), argument)) == repr((fn(again), again))
    assert len(subject.of_kind("entry")) > 1


def test_identity_of_tuples_is_guarded() -> None:
    def same(pair):
        return pair[0] is pair[1], pair[0] == pair[1]

    frames.reset()
    subject = compiled(same)
    for one, other in ((tuple([1]), tuple([1])), (float("1.5"), float("1.5")), ("a" * len(X), "a" * len(X))):
        for pair in ([one, other], [one, one], [other, one]):
            assert subject(pair) == same(pair)


@pytest.mark.parametrize("make", [lambda: X.clone(), lambda: torch.nn.Linear(1, 1)])
def test_objects_used_as_keys_are_distinguished_again(make: Callable[[], Any]) -> None:
    def count(a, b):
        table = {a: 1}
        table[b] = 2
        return len(table), a in {b}, len({a, b})

    frames.reset()
    subject = compiled(count)
    first, second = make(), make()
    for a, b in ((first, second), (first, first), (second, first)):
        assert subject(a, b) == count(a, b)


@pytest.mark.parametrize("remove", [lambda d: d.__delitem__("n"), lambda d: d.pop("n"), lambda d: d.popitem()])
@pytest.mark.parametrize("states", list(itertools.permutations([{"n": 1}, {}, {"m": 1}, {"n": 2, "m": 1}], 2)))
def test_a_key_stored_and_removed_again(remove: Any, states: Any) -> None:
    def program(x: torch.Tensor, d: dict[str, int]) -> Any:
        d["n"] = 5
        return x + 1, remove(d)

    subject = compiled(program)
    for state in states:
        expected, found = dict(state), dict(state)
        assert program(X, expected)[1] == subject(X, found)[1]
        assert list(found.items()) == list(expected.items())
