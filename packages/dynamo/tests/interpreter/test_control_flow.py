"""Programs without graph breaks: branches, loops, containers, closures, calls.

Each must be one graph and equal eager on three calls.
"""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from functools import partial
from typing import Any

import pytest
import torch
from driver import check

X = torch.arange(6.0).reshape(2, 3)
Y = torch.linspace(-1, 1, 6).reshape(2, 3)
Point = namedtuple("Point", "x y")
SCALE = 3


def branches(x, n):
    if n > 2 and x.shape[0] == 2:
        return x * n
    elif n == 2 or x.dim() == 7:
        return x - n
    return x


def chained(x, n):
    return x + 1 if 0 < n <= 5 else x - 1


def while_loop(x):
    n = 0
    while True:
        n += 1
        if n % 2:
            continue
        x = x * n
        if n > 4:
            break
    else:
        x = x - 1000
    return x, n


def for_else(x, items):
    for item in items:
        if item < 0:
            break
        x = x + item
    else:
        x = x * 100
    return x


def nested_loops(x):
    total = x
    for i, row in enumerate([[1, 2], [3, 4]]):
        for a, b in zip(row, reversed(row)):
            total = total + a * b * i
    return total


def comprehensions(x):
    squares = [x * i for i in range(3)]
    named = {f"k{i}": t.sum() for i, t in enumerate(squares) if i}
    odd = {i for i in range(6) if i % 2}
    nested = [(i, j) for i in range(2) for j in range(2) if i != j]
    return squares, named, sorted(odd), nested


def unpacking(x, y):
    a, *rest, b = (x, y, x + y, 4)
    (c, d), e = (a, b), rest
    merged = [*e, c]
    return merged, d, {"a": 1, "b": a}


def star_call(x, y):
    def f(a, b=2, *args, c, d=4, **kwargs):
        return a * b + sum(args) + c * d + kwargs.get("z", 0)

    args = (x, 3)
    options = {"c": y, "z": 1}
    return f(*args, 5, 6, **options) + f(x, c=y) + f(a=x, b=1, c=2, d=3)


def format_strings(x, n):
    width = 6
    label = f"{n:>{width}.2f}|{x.shape[0]!r}|{'ab'}|{x.dtype}"
    old = "%d-%s" % (n, "q")  # noqa: UP031
    return x, label, old, "{}:{k}".format(n, k=2)  # noqa: UP032


def closures(x):
    counter = 0
    log = []

    def bump(by=1):
        nonlocal counter
        counter += by
        log.append(counter)
        return counter

    for i in range(3):
        bump(i)
    return x * counter, log, [f() for f in [lambda i=i: i * 2 for i in range(3)]]


def decorators(x):
    def twice(f):
        def inner(*args, **kwargs):
            return f(f(*args, **kwargs))

        return inner

    @twice
    def double(t):
        return t * 2

    return double(x)


def partials(x, y):
    f = partial(torch.add, alpha=2)
    g = partial(lambda a, b, c: a - b * c, x, c=3)
    return f(x, y), g(y)


def recursion(x, n):
    def fact(k):
        return 1 if k <= 1 else k * fact(k - 1)

    return x * fact(n)


def walrus(x):
    if (n := x.shape[1]) > 2:
        x = x[:, : n - 1]
    return x, n


def global_name(x):
    return x * SCALE + math.sqrt(4.0) + math.pi


def delete(x):
    y = x + 1
    d = {"a": y, "b": x}
    items = [1, 2, 3]
    del y, d["a"], items[0]
    return d, items


def slices(x):
    items = list(range(10))
    items[2:5] = [0]
    return x[0, 1:], x[..., None], x[:, [0, 2]], items[::-2], items[-3:]


def ternary_chain(x, flag):
    value = None if flag is None else flag
    return (x if value else -x), value is not None, not value


def named_tuples(x):
    p = Point(x, y=x + 1)
    q = p._replace(x=p.y)
    return p.x + q.x, q, p._fields


def ordered(x):
    d = OrderedDict(b=1, a=2)
    d["c"] = x
    d.move_to_end("b")
    return list(d.items())


def matching(x, command):
    match command:
        case ["go", int(n)] if n > 1:
            return x * n
        case {"k": value, **rest}:
            return x + value, rest
        case Point(x=a, y=b):
            return x * a - b
        case "stop" | "halt":
            return x - 1
        case [first, *others]:
            return x + len(others), first, others
        case None:
            return -x
        case _:
            return x


def min_max(x):
    return (
        max(3, 1, 2),
        min([4, 2]),
        sum([x, x]),
        any([0, 1]),
        all([]),
        sorted([3, 1], reverse=True),
        abs(-3),
        round(2.567, 2),
    )


def string_methods(x):
    return x, "a,b".split(","), "-".join(["x", "y"]), "Abc".lower().startswith("a"), "abc"[1], len("abc")


def type_checks(x):
    kinds = [isinstance(x, torch.Tensor), isinstance(3, (int, str)), issubclass(bool, int), type(x) is torch.Tensor]
    return x, kinds, hasattr(x, "shape"), getattr(x, "nope", 5), callable(len)


def boolean_logic(x, a, b):
    return x + ((a and b) or 7), a or b, (not a) and b


def assertion(x):
    assert x.shape[0] == 2, "wrong shape"
    assert isinstance(x, torch.Tensor)
    return x * 2


def iterators(x):
    it = iter([1, 2, 3])
    first = next(it)
    rest = list(it)
    return x * first, rest, next(it, "none"), list(map(lambda v: v + 1, rest)), list(filter(None, [0, 1]))


def local_import(x):
    import math as m
    from collections import deque

    d = deque([1, 2], maxlen=2)
    d.append(3)
    return x * m.floor(2.5), list(d)


def tensor_attributes(x, y):
    return x.shape, x.size(0), x.dtype, x.device, x.ndim, x.is_floating_point(), x.T + y.mT, x.numel()


def torch_functions(x, y):
    values, indices = torch.max(x, dim=1)
    parts = x.chunk(3, dim=1)
    result = torch.sort(y, dim=1)
    return values, indices, torch.cat(parts, dim=0), result.values, torch.stack([x, y]).mean((0, 1)), result


def unused_work(x):
    dead = x.exp().log()
    dead = [dead, x + 1]
    return x * 2


PROGRAMS: list[tuple[Any, tuple[Any, ...]]] = [
    (branches, (X, 3)),
    (branches, (X, 2)),
    (branches, (X, 0)),
    (chained, (X, 3)),
    (chained, (X, 7)),
    (while_loop, (X,)),
    (for_else, (X, [1, 2, 3])),
    (for_else, (X, (1, -1, 3))),
    (nested_loops, (X,)),
    (comprehensions, (X,)),
    (unpacking, (X, Y)),
    (star_call, (X, Y)),
    (format_strings, (X, 3)),
    (closures, (X,)),
    (decorators, (X,)),
    (partials, (X, Y)),
    (recursion, (X, 5)),
    (walrus, (X,)),
    (global_name, (X,)),
    (delete, (X,)),
    (slices, (X,)),
    (ternary_chain, (X, None)),
    (ternary_chain, (X, 0)),
    (named_tuples, (X,)),
    (ordered, (X,)),
    (matching, (X, ["go", 3])),
    (matching, (X, ["go", 1])),
    (matching, (X, {"k": 2, "z": 1})),
    (matching, (X, Point(2, 3))),
    (matching, (X, "halt")),
    (matching, (X, None)),
    (matching, (X, 5)),
    (min_max, (X,)),
    (string_methods, (X,)),
    (type_checks, (X,)),
    (boolean_logic, (X, 0, 3)),
    (assertion, (X,)),
    (iterators, (X,)),
    (local_import, (X,)),
    (tensor_attributes, (X, Y)),
    (torch_functions, (X, Y)),
    (unused_work, (X,)),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_one_graph_equal_to_eager(program: tuple[Any, tuple[Any, ...]]) -> None:
    fn, args = program
    found = check(fn, *args, fullgraph=True)
    assert len(found.of_kind("entry")) == 1, [str(event) for event in found.events]
    assert not found.of_kind("break")


def test_dead_operations_are_removed() -> None:
    assert check(unused_work, X).calls == ["mul"]


def test_no_graph_without_operations() -> None:
    def nothing(x, n):
        return n + 1, x

    found = check(nothing, X, 3)
    assert not found.graphs
    assert len(found.of_kind("entry")) == 1
