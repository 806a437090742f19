"""Programs over containers: compiled as one whole frame, with eager's results, mutations and identities."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from driver import check, compiled

Pair = namedtuple("Pair", "left right", defaults=(7,))


class Point(NamedTuple):
    """A named tuple with methods."""

    x: int
    y: int = 2

    def total(self) -> int:
        return self.x + self.y

    @property
    def doubled(self) -> Point:
        return Point(self.x * 2, self.y * 2)


PROGRAMS: list[Any] = []
X = torch.arange(6.0).reshape(2, 3)


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(pytest.param(fn, args, id=fn.__name__))
        return fn

    return register


# Lists


@program([1, 2, 3])
def list_mutations(xs):
    xs.append(4)
    xs.insert(1, "a")
    xs[0] = 5
    xs += (6, 7)
    del xs[2]
    taken = xs.pop(), xs.pop(0)
    xs.remove(4)
    xs.reverse()
    return taken, xs


@program([1, 2, 3, 4, 5, 6])
def list_slices(xs):
    out = xs[1:], xs[::-1], xs[-2:], xs[4:1:-2], xs[10:], xs[:-1]
    xs[1:3] = "abc"
    xs[::2] = range(4)
    del xs[-2:]
    xs[:0] = [0]
    return out, xs


@program([3, 1, 2], [])
def list_sorting(xs, log):
    def key(x):
        log.append(x)
        return -x

    ordered = sorted(xs, key=key)
    xs.sort(reverse=True)
    pairs = [(1, "b"), (0, "z"), (1, "a")]
    pairs.sort(key=lambda pair: pair[0])
    return ordered, xs, pairs, sorted("hello"), sorted([1, True, 0.5])


@program([1, 2])
def list_aliases(xs):
    ys = xs
    ys.append(3)
    both = [xs, ys, xs.copy(), xs[:], list(xs)]
    both[0].append(4)
    return both, [a is xs for a in both], xs == both[2], [1] < [1, 0], [2] > [1, 9], [] == []


@program([[1], [2]], X)
def nested_lists(xss, x):
    xss[0].append(x)
    xss[0], xss[1] = xss[1], xss[0]
    xss.append([y for xs in xss for y in xs])
    return xss


@program([0, 1], 3)
def list_operators(xs, n):
    return (
        xs * n,
        n * xs,
        xs + [n],
        1 in xs,
        "q" not in xs,
        xs.count(1),
        xs.index(1),
        len(xs),
        [*xs, n],
        bool(xs),
        not [],
    )


@program([1, 2, 3])
def list_errors(xs):
    out = []
    for attempt in (
        lambda: xs[9],
        lambda: xs.index(9),
        lambda: xs.remove(9),
        lambda: [].pop(),
        lambda: xs + (1,),
        lambda: xs["a"],
    ):
        try:
            attempt()
        except (IndexError, ValueError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return out


# Tuples


@program((1, 2, 3), X)
def tuples(t, x):
    a, *b = t
    (c, d), e = (a, b), x
    return (
        t + (4,),
        t[::-1],
        t * 2,
        t[-1],
        t[1:],
        (a, b, c, d),
        t == (1, 2, 3),
        t < (1, 3),
        2 in t,
        hash(t),
        (t, e),
        t.index(2),
    )


@program(X)
def sizes(x):
    s = x.shape
    n, m = s
    rest = s[1:], s[:-1] + (5,), tuple(s), list(s), s.numel(), len(s), s == (2, 3), s[-1] * 2, max(s), sum(s)
    return (
        s,
        n,
        m,
        rest,
        isinstance(s, tuple),
        isinstance(s, torch.Size),
        torch.Size([1, 2]),
        x.reshape(s[::-1]),
        type(s[1:]).__name__,
    )


@program(X)
def named_tuples(x):
    p, q = Pair(1), Pair(right=x, left=2)
    point = Point(1)
    made = Point._make([3, 4])
    return (
        p,
        q.right + p.right,
        p._replace(left=5),
        p._asdict(),
        made,
        point.total(),
        made.doubled,
        point == (1, 2),
        Point._fields,
        *p,
    )


@program(Pair(1, X), [Point(1, 2)])
def named_tuples_from_outside(p, points):
    left, right = p
    return left, p.right is right, points[0].total(), [point.x for point in points], isinstance(p, tuple)


@program(X)
def structured_results(x):
    values, indices = x.max(dim=1)
    found = torch.sort(x, dim=1, descending=True)
    return values, indices, found.values, found[1], x.min(dim=0)


# Dicts


@program({"a": 1, "b": 2}, X)
def dict_mutations(d, x):
    d["c"] = x
    d["a"] += 10
    del d["b"]
    d.update(e=5, f=6)
    d.update({"g": 7})
    d.update([("h", 8)])
    popped = d.pop("e"), d.pop("zz", None), d.setdefault("new", []), d.setdefault("a", 0)
    d |= {"i": 9}
    return popped, d, list(d), len(d)


@program({"a": 1, "b": 2, "c": 3})
def dict_order(d):
    d["a"] = d.pop("a")
    first = list(d)
    d.setdefault("z", 0)
    d["b"] = 20
    last = d.popitem()
    return first, last, list(d.items()), list(reversed(d))


@program({"a": 1, "b": 2})
def dict_views(d):
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        list(keys),
        list(values),
        list(items),
        "c" in keys,
        3 in values,
        ("c", 3) in items,
        len(items),
        keys & {"a", "z"} == {"a"},
        keys == {"a", "b", "c"},
    )


@program({"a": 1}, {"b": [1]})
def dict_merging(d, e):
    both = {**d, **e, "c": 3}
    union = d | e
    copied = dict(d, z=1)
    both["b"].append(2)
    return (
        both,
        union,
        copied,
        dict(zip("xy", (1, 2))),
        dict.fromkeys("ab", 0),
        {k: v for k, v in both.items() if k != "c"},
        d == {"a": 1},
        d != e,
    )


@program({1: "int", (1, 2): "tuple", None: 0, "s": True}, X)
def dict_keys_of_all_kinds(d, x):
    return (
        d[1.0],
        d[True],
        d[1, 2],
        d[None],
        d.get(False),
        2 in d,
        (1, 2) in d,
        {x.dtype: 1}[torch.float32],
        {torch.float32: 3, int: 4}[int],
    )


@program({"a": 1})
def dict_errors(d):
    out = []
    for attempt in (lambda: d["q"], lambda: d.pop("q"), lambda: {}[[]], lambda: {}.popitem(), lambda: d.nope):
        try:
            attempt()
        except (KeyError, TypeError, AttributeError) as error:
            out.append((type(error).__name__, len(error.args)))
    return out


@program({"a": 1, "b": 2})
def dict_cleared(d):
    d.clear()
    d["b"] = 3
    return d, "a" in d, len(d)


@program(OrderedDict(a=1, b=2, c=3))
def ordered_dicts(o):
    o.move_to_end("a")
    o.move_to_end("c", last=False)
    first = o.popitem(last=False)
    made = OrderedDict([("x", 1), ("y", 2)])
    return first, o, made, list(reversed(made)), made == {"y": 2, "x": 1}, made == OrderedDict(y=2, x=1)


@program(defaultdict(list, a=[1]))
def default_dicts(d):
    d["a"].append(2)
    d["b"].append(3)
    counts = defaultdict(int)
    for letter in "hello":
        counts[letter] += 1
    return d, counts, dict(counts), "zz" in d, d.get("zz"), counts.default_factory is int


@program({"w": X, "sub": {"b": X + 1}})
def dicts_of_tensors(d):
    total = sum(d["sub"].values())
    d["sub"]["c"] = d["w"] @ total.T
    return {name: value * 2 if name == "w" else value for name, value in d.items()}


# Sets


@program({1, 2, 3})
def set_mutations(s):
    s.add(9)
    s.discard(1)
    s.discard(77)
    s |= {10}
    s -= {2}
    s.update([11], (12,))
    return s, 9 in s, len(s), s == {3, 9, 10, 11, 12}


@program()
def set_operators():
    a, b = {1, 2, 3}, frozenset([2, 3, 4])
    return (
        a & b,
        a | b,
        a - b,
        a ^ b,
        b - a,
        a <= {1, 2, 3, 4},
        a < a,
        a.isdisjoint(b),
        a.union("x"),
        sorted(b),
        {x % 2 for x in a},
        type(b | a),
    )


@program()
def set_order():
    words = {"b", "a", "c", "a"}
    numbers = {33, 1, 17, 8}
    numbers.add(5)
    numbers.remove(1)
    return (
        list(words),
        list(numbers),
        [n for n in numbers | {100, 3}],
        list(set("hello")),
        list(set({"q": 1, "r": 2})),
        numbers.pop(),
    )


@program({"a", "b"})
def set_errors(s):
    out = []
    for attempt in (lambda: s.remove("q"), lambda: set().pop(), lambda: {[]}, lambda: s + s, lambda: s | ["a"]):
        try:
            attempt()
        except (KeyError, TypeError) as error:
            out.append(type(error).__name__)
    return out, "a" in s, sorted(s)


# Deques, slices, ranges


@program(deque([1, 2, 3], 4))
def deques(d):
    d.append(4)
    d.append(5)
    d.appendleft(0)
    d.rotate(1)
    d.extend([8])
    d.extendleft("ab")
    made = deque(range(3))
    made.insert(1, "x")
    return d, d.popleft(), d.pop(), list(d), d.maxlen, made, made[1], 2 in made, list(reversed(made)), len(made)


@program(X, slice(0, 1))
def slices(x, s):
    whole = slice(None)
    return (
        x[s],
        x[:, 1:],
        x[..., whole],
        [1, 2, 3][s],
        s.start,
        slice(5).indices(3),
        x[0, slice(1, None)],
        s == slice(0, 1),
        "abc"[::-1],
    )


@program(4)
def ranges(n):
    r = range(n)
    return (
        list(r),
        r[1],
        r[1:],
        r[::-1],
        len(r),
        2 in r,
        9 in r,
        r.index(2),
        r == range(0, 4, 1),
        list(range(5, 0, -2)),
        r,
        sum(r),
        r.stop,
        bool(range(0)),
    )


@pytest.mark.parametrize(("fn", "args"), PROGRAMS)
def test_program(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    subject = check(fn, *args, calls=2)
    assert not subject.of_kind("break") and not subject.of_kind("skip") and not subject.of_kind("run-once"), (
        subject.events
    )
    assert len(subject.of_kind("entry")) == 1


def containers_that_contain_themselves(xs, d):
    xs.append(xs)
    d["self"] = d
    fresh = []
    fresh.append((fresh, d))
    return fresh


def test_containers_that_contain_themselves() -> None:
    subject = compiled(containers_that_contain_themselves)
    for _ in range(2):
        xs, d = [1], {"a": 1}
        fresh = subject(xs, d)
        assert len(xs) == 2 and xs[1] is xs and list(d) == ["a", "self"] and d["self"] is d
        assert len(fresh) == 1 and fresh[0][0] is fresh and fresh[0][1] is d
    assert [event.kind for event in subject.events] == ["entry"]


def test_sets_keep_the_same_one_of_equal_members() -> None:
    def combine(a, b):
        a |= {1.0, "q"}
        return a & b, b & a, a | b, b | a, a ^ {1.0, 3}, frozenset(a) & b

    def found(fn: Callable[..., Any]) -> list[list[str]]:
        return [sorted(map(repr, c)) for c in fn({"p", 2, True}, {1, "p"})]

    subject = compiled(combine)
    assert found(subject) == found(combine)
    assert found(subject) == found(combine)
    assert [event.kind for event in subject.events] == ["entry"]


def test_identity_of_arguments_and_results() -> None:
    def swap(xs, ys):
        xs[0], ys[0] = ys, xs
        both = [xs, ys]
        return both, xs is ys, both[0] is xs, (xs, both)

    subject = compiled(swap)
    xs, ys = [1], [2]
    both, same, kept, (first, again) = subject(xs, ys)
    assert xs[0] is ys and ys[0] is xs and both[0] is xs and both[1] is ys
    assert (same, kept) == (False, True) and first is xs and again is both
    one = [1]
    both, same, kept, _ = subject(one, one)
    assert same and both[0] is both[1] is one and one[0] is one


def test_guards_on_containers_lead_to_new_entries() -> None:
    def pick(d, xs):
        return d.get("a", 0) + len(xs) * 10 + ("b" in d)

    subject = compiled(pick)
    calls = [({"a": 1}, [1]), ({"a": 2}, [1]), ({}, [1]), ({"b": 1}, [1, 2]), ({"a": 1, "zz": 0}, [5])]
    for d, xs in calls:
        assert subject(d, xs) == pick(d, xs)
    assert len(subject.of_kind("entry")) == 4  # the last call, with a key that was never read, finds the first entry


def stored_before_another(d: dict[Any, Any], key: Any, x: torch.Tensor) -> None:
    d[key] = x
    d["t"] = x + 1


def stored_with_an_equal_key(d: dict[Any, Any], key: Any, x: torch.Tensor) -> None:
    d[True] = x + 1
    d[key] = x


@pytest.mark.parametrize("cls", [dict, OrderedDict])
@pytest.mark.parametrize("function", [stored_before_another, stored_with_an_equal_key])
def test_whether_a_stored_key_is_there_may_change(function: Callable[..., Any], cls: type) -> None:
    subject = compiled(function)
    for held in ({"t": 0}, {}, {"t": 0, 1: 2}, {1: 2}, {3: 1}, {"u": 1}):
        ours, theirs = cls(held), cls(held)
        subject(ours, 3, X)
        function(theirs, 3, X)
        assert [(type(key), key, str(value)) for key, value in ours.items()] == [
            (type(key), key, str(value)) for key, value in theirs.items()
        ]


@pytest.mark.parametrize("cls", [dict, OrderedDict])
def test_what_is_stored_where_it_is_already_is_no_mutation(cls: type) -> None:
    """An optimizer stores its state again: no replay, and no guard that its dicts are distinct."""

    def step(states: list[dict[str, torch.Tensor]]) -> None:
        for state in states:
            buffer = state["buffer"]
            buffer.add_(1)
            state["buffer"] = buffer

    states = [cls(first=torch.zeros(1), buffer=torch.zeros(2)) for _ in range(3)]
    buffers = [state["buffer"] for state in states]
    compiled_step = compiled(step)
    compiled_step(states)
    compiled_step(states)
    (entry,) = compiled_step.of_kind("entry")
    assert "setitem" not in entry.residual_text
    assert all(state["buffer"] is buffer and buffer[0] == 2 for state, buffer in zip(states, buffers, strict=True))
    shared = [states[0], states[0], states[1]]
    compiled_step(shared)
    assert [float(buffer[0]) for buffer in buffers] == [4.0, 3.0, 2.0]
