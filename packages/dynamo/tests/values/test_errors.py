"""Operations that Python rejects: the traced program raises the same messages, for operators, statements, builtins,
methods.
"""

from __future__ import annotations

import copy
import functools
import heapq
import inspect
import itertools
import math
import operator
import random
import re
import typing
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from driver import compiled

import framesmith_frames as frames

X = torch.arange(6.0).reshape(2, 3)


class Nothing:
    """An object that supports no operation."""

    def __repr__(self) -> str:
        return "Nothing()"


class HalfManager:
    """Can be entered, and not left."""

    def __enter__(self) -> int:
        return 1


class Indexable:
    """Iterated by index."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> int:
        return [10, 20][i]


class Computed:
    """A property without setter, a slot."""

    __slots__ = ("__dict__", "q")

    @property
    def p(self) -> int:
        return 1


Pair = namedtuple("Pair", "a b")


def function(*args: Any) -> int:
    return len(args)


VALUES: list[Any] = [
    5, "s", None, [1, 2], 1.5, Nothing(), function, (3,), {"k": 1}, True, b"b", {1, 2}, range(3), Indexable(),
    HalfManager(), Computed(), len, int, slice(1, 2), frozenset([1]), deque([1, 2]), OrderedDict(a=1), 2**70,
]  # fmt: skip


def shown(result: Any) -> Any:
    """Return a result as text that two runs share."""
    if isinstance(result, Iterator):
        result = (type(result).__name__, attempt(lambda: list(itertools.islice(result, 4)), (), {}))
    return type(result).__name__, re.sub(r"0x[0-9a-f]+", "", repr(result))


def attempt(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, error.args


def differences(call: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any) -> str:
    """Return the differences between a call in eager mode and compiled; empty if there are none."""

    def program(x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = call(*args, **kwargs)
        except Exception as error:
            result = type(error).__name__, error.args
        return x + 1, result

    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    function.__dict__.clear()
    expected = shown(attempt(call, theirs, kwargs))
    function.__dict__.clear()
    frames.reset()
    found = shown(compiled(program)(X, mine, kwargs)[1])
    if found == expected and shown(mine) == shown(theirs):
        return ""
    return f"{args} {kwargs}: compiled {found}, {mine}; eager {expected}, {theirs}"


def made(text: str) -> Callable[..., Any]:
    """Return the function of a text: an expression of `a` (and `b`), or a body."""
    names: dict[str, Any] = {"function": function, "HalfManager": HalfManager, "deque": deque, "Pair": Pair}
    names["OrderedDict"] = OrderedDict
    body = f" return {text}" if not text.startswith(" ") else text
    exec(f"def made(a, b=None):\n{body}", names)
    return names["made"]  # type: ignore[no-any-return]


UNARY = [
    "-a", "~a", "a()", "a(1)", "a.missing", "a.real", "a[0]", "a[1:]", "a[-1]", "[*a]", "{*a}", "{**a}", "function(*a)",
    "function(**a)", "[v for v in a]", "len(a)", "next(a)", "f'{a:>3}'", "f'{a:d}'", "abs(a)", "sum(a)", "max(a)",
    "dict(a)", "range(a)", "a.append(1)", "a.pop()", "a in a", "a @ a", "divmod(a, a)", "round(a)", "ord(a)", "bin(a)",
    "list(map(a, [1]))", "list(reversed(a))", "print.missing", "a.__add__(a)", "a.__getitem__(0)", "getattr(a, a)",
    "pow(a, 2, 5)", "a.index(1)", "a.copy()", "a.get(1)", "a.join(['x'])", "a % 1", "a % (1,)", "a.upper(1, 2, 3)",
    " x, y = a\n return x, y", " x, *y = a\n return x, y", " with a:\n  pass", " raise a", " raise ValueError from a",
    " try:\n  raise KeyError(1)\n except a:\n  pass", " assert not a, a", " del a.missing",
    " a.missing = 1\n del a.missing",
    " del a.q", " a.p = 1", " del a.p", " a.real = 1", " a.append = 1", " a[0] += 1\n return a", " a.missing += 1",
    " def g():\n  yield from a\n return list(g())", " import nowhere", " del a[0]\n return a", " a[0:1] = 5\n return a",
    " a[::2] = [7]\n return a", " match a:\n  case int(x, y):\n   return x\n  case [x, *_]:\n   return x",
    "a.__class__(*a)", " def g(x, y, /, z): pass\n g(y=a, x=a, z=a)", " def g(x, /): pass\n g(z=a)",
]  # fmt: skip


@pytest.mark.sampled(15)
@pytest.mark.parametrize("text", UNARY)
def test_one_operand(text: str) -> None:
    call = made(text)
    assert not [found for value in VALUES if (found := differences(call, (value,)))]


BINARY = [f"a {op} b" for op in "+ - * / // % ** @ & | ^ << < >= == in".split()]
BINARY += [f" a {op}= b\n return a" for op in "+ - * // ** @ | >>".split()]
BINARY += [
    "a[b]", "a(b)", "isinstance(a, b)", "issubclass(a, b)", "a[b:]", "a[::b]", "divmod(a, b)", "format(a, b)",
    "sum(a, b)",
    "a.index(b)", "list(zip(a, b, strict=True))", "list(map(a, b))", "function(**a, **b)", "round(a, b)", "a.pop(b)",
    " del a[b]\n return a", " a[b] = 1\n return a", " a[:1] = b\n return a", " a.extend(b)\n return a",
    " raise a from b",
    " a.update(b)\n return a", " a.insert(b, 0)\n return a",
]  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("text", BINARY)
def test_two_operands(text: str) -> None:
    call, choose = made(text), random.Random(text)
    pairs = choose.sample(list(itertools.product(VALUES, repeat=2)), 24)
    assert not [found for pair in pairs if (found := differences(call, pair))]


LACKING = [
    "[1].index(a)", "(1,).index(a)", "deque([1]).index(a)", "range(3).index(5)", "Pair(1, 2).index(a)",
    "Pair(1, 2)._replace(c=1, d=2)",
    "OrderedDict().pop(a, 5)", "OrderedDict(k=1).pop(a)", "OrderedDict().move_to_end(a)",
    "OrderedDict(k=1).move_to_end(a)",
    "OrderedDict([(a, 1)])", "OrderedDict.fromkeys([a])", "OrderedDict(k=1)[a]", "OrderedDict().setdefault(a, 1)",
    "OrderedDict().update([(a, 1)])", "a in OrderedDict(k=1)", "OrderedDict(k=1).get(a)",
    " b = OrderedDict(k=1)\n b[a] = 1", " b = OrderedDict(k=1)\n del b[a]",
    "{}.pop(a, 5)", "{'k': 1}.pop(a)", "{a: 1}", "dict([(a, 1)])", "dict.fromkeys([a])", "{'k': 1}[a]", "{a}",
    "a in {1}", " b = {}\n b[a] = 1", " b = {}\n del b[a]",
]  # fmt: skip


@pytest.mark.parametrize("text", LACKING)
def test_what_a_container_does_not_hold(text: str) -> None:
    assert not differences(made(text), ([9],))


CALLABLES: list[Any] = [
    len, iter, next, sorted, any, all, abs, divmod, pow, min, max, sum, round, isinstance, getattr, hasattr, setattr,
    delattr, callable, hash, repr, format, int, float, complex, bool, bytes, str, list, tuple, set, frozenset,
    dict, OrderedDict, defaultdict, deque, slice, range, enumerate, zip, map, filter, reversed, dict.fromkeys,
    OrderedDict.fromkeys, defaultdict.fromkeys, itertools.count, itertools.repeat, itertools.chain, itertools.islice,
    itertools.chain.from_iterable, itertools.accumulate, itertools.takewhile, itertools.zip_longest, itertools.tee,
    itertools.product, itertools.permutations, itertools.combinations, itertools.starmap, itertools.pairwise,
    functools.reduce, functools.partial, functools.cmp_to_key, operator.add, operator.iadd, operator.concat,
    operator.getitem, operator.index, operator.itemgetter, operator.attrgetter, operator.methodcaller, operator.countOf,
    heapq.heappush, heapq.heappop, math.prod, math.sqrt, [].append, {}.update, list.sort, str.upper, "x".join,
]  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("call", CALLABLES, ids=lambda call: getattr(call, "__qualname__", repr(call)))
def test_arguments_that_do_not_fit(call: Any) -> None:
    choose = random.Random(call.__qualname__)
    few = [value for value in VALUES if value is not slice and type(value).__hash__ is not object.__hash__]
    lists = [(), *[(value,) for value in choose.sample(few, 6)]]
    lists += [tuple(choose.sample(few, count)) for count in (2, 2, 2, 2, 3, 3, 3, 4, 5)]
    found = [differences(call, args) for args in lists]
    found += [differences(call, args, unknown=1) for args in lists[:2]]
    assert not [text for text in found if text]


#: Special methods, and expressions that call them.
ASKED: dict[str, tuple[str, ...]] = {
    "__len__": ("len(a)", "bool(a)", "1 if a else 2", "list(reversed(a))"),
    "__bool__": ("bool(a)", "not a", "a and 3", "bool(a) + len([a])"),
    "__iter__": ("iter(a)", "list(a)", "3 in a", "function(*a)"),
    "__hash__": ("hash(a)",),
    "__index__": ("[1, 2, 3][a]", "range(5)[a]", "range(a)", "hex(a)"),
    "__int__": ("int(a)",),
    "__float__": ("float(a)",),
    "__complex__": ("complex(a)",),
    "__contains__": ("1 in a", "1 not in a"),
    "__str__": ("str(a)", "f'{a}'"),
    "__instancecheck__": ("isinstance(1, a)",),
    "__subclasscheck__": ("issubclass(int, a)",),
    "__eq__": ("a == 1", "1 != a", "a in [1]"),
}
ANSWERS: list[Any] = [0, 3, -1, True, 2.0, "s", None, [], Nothing(), 2**70]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("of_a_class", [False, True], ids=["object", "class"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_answers_of_special_methods(name: str, of_a_class: bool) -> None:
    for text, answer in itertools.product(ASKED[name], ANSWERS):
        entries = {name: lambda self, *args, answer=answer: answer, "__deepcopy__": lambda self, memo: self}
        asked = type("Meta", (type,), entries)("Asked", (), {}) if of_a_class else type("Asked", (), entries)()
        assert not differences(made(text), (asked,))


def test_special_methods_are_those_of_the_type() -> None:
    class Asked:
        def __len__(self) -> int:
            return 2

        __index__ = __int__ = __hash__ = __len__

        def __str__(self) -> str:
            return "two"

    asked = Asked()
    for name in ("__len__", "__index__", "__int__", "__str__", "__hash__"):
        setattr(asked, name, lambda: 5)
    for text in ("len(a)", "[1, 2, 3][a]", "int(a)", "str(a)", "hash(a)", "a.__len__()", "a.__str__()"):
        assert not differences(made(text), (asked,))


def test_bounds_of_islice() -> None:
    bounds = [None, 0, 2, -1, -2, 1.5, 2**70, -(2**70), True]
    found = [differences(itertools.islice, ([1, 2, 3], *chosen)) for chosen in itertools.product(bounds, repeat=2)]
    found += [differences(itertools.islice, ([1, 2, 3], 0, stop, step)) for stop in bounds for step in bounds]
    assert not [text for text in found if text]


def test_a_sequence_is_unpacked_no_further_than_needed() -> None:
    def endless() -> Iterator[int]:
        yield from itertools.count()

    def program(x: Any, log: list[str]) -> Any:
        try:
            _, _ = endless()
        except ValueError as error:
            log.append(str(error))
        return x + 1

    log: list[str] = []
    assert compiled(program)(X, log).equal(X + 1) and log == ["too many values to unpack (expected 2)"]


def test_items_are_asked_for_where_python_asks() -> None:
    def program(x: Any, log: list[str]) -> Any:
        for make in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.starmap):
            try:
                make(len, 5)
            except TypeError as error:
                log.append(str(error))
        made = itertools.islice([1, 2, 3], True), itertools.count(True), itertools.count(True, 2), itertools.count(2.5)
        return x + 1, [next(it) for it in made], [type(next(it)) for it in made if type(it) is itertools.count]

    mine: list[str] = []
    theirs: list[str] = []
    assert compiled(program)(X, mine)[1:] == program(X, theirs)[1:] and mine == theirs and len(mine) == 4


def test_made_callables_are_of_their_own_type() -> None:
    def program(x: Any, rows: list[Any]) -> Any:
        second, name = operator.itemgetter(1), operator.attrgetter("real", "imag")
        call, key = operator.methodcaller("count", 1), functools.cmp_to_key(lambda a, b: b - a)
        rows.sort(key=second)
        return x + 1, rows, name(3), call([1, 1]), sorted([1, 3, 2], key=key), second, name, call, key

    _, rows, *results, second, name, call, key = compiled(program)(X, [(1, 3), (2, 1)])
    assert rows == [(2, 1), (1, 3)] and results == [(3, 0), 2, [3, 2, 1]]
    assert second((5, 6)) == 6 and name(2) == (2, 0) and call([1]) == 1 and sorted([1, 2], key=key) == [2, 1]
    assert [type(value) for value in (second, name, call)] == [
        operator.itemgetter, operator.attrgetter, operator.methodcaller,
    ]  # fmt: skip


def test_a_frame_that_is_looked_at_is_left_to_python() -> None:
    def program(x: Any, look: Callable[..., Any]) -> Any:
        y = x + 1
        inner = 3
        return sorted(look()), y, inner

    for look in (vars, locals, dir):
        assert compiled(program)(X, look)[0] == program(X, look)[0]


def _asserted(*args: Any, **kwargs: Any) -> None:
    torch._assert(*args, **kwargs)


def _cast(*args: Any, **kwargs: Any) -> Any:
    return typing.cast(*args, **kwargs)


def _is_tensor(*args: Any, **kwargs: Any) -> Any:
    return torch.is_tensor(*args, **kwargs)


def _signature(*args: Any, **kwargs: Any) -> Any:
    return len(inspect.signature(*args, **kwargs).parameters)


def _assert_type(*args: Any, **kwargs: Any) -> Any:
    return typing.assert_type(*args, **kwargs)


@pytest.mark.parametrize(
    ("call", "args", "kwargs"),
    [
        (_asserted, (True, "no"), {}),
        (_asserted, (False, "no"), {}),
        (_asserted, (True,), {"message": "no"}),
        (_asserted, (), {"condition": False, "message": "no"}),
        (_asserted, (True,), {}),
        (_asserted, (True, "no"), {"message": "no"}),
        (_is_tensor, (1,), {}),
        (_is_tensor, (), {"obj": 1}),
        (_is_tensor, (), {}),
        (_is_tensor, (1, 2), {}),
        (_cast, (int, 1), {}),
        (_cast, (int,), {"val": 1}),
        (_cast, (), {"typ": int, "val": 1}),
        (_cast, (int,), {}),
        (_assert_type, (1,), {"typ": int}),
        (_assert_type, (1,), {}),
        (_signature, (function,), {}),
        (_signature, (), {"obj": function}),
        (_signature, (), {}),
        (_signature, (function, function), {}),
        (_signature, (function,), {"obj": function}),
    ],
)
def test_arguments_of_library_functions(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """By name and by position, too few and too many."""
    assert not differences(call, args, **kwargs)
