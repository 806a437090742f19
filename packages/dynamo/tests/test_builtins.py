"""Programs over builtins, strings and numbers: traced whole, with eager's results and exceptions."""
# ruff: noqa: UP031, RUF017, E711

from __future__ import annotations

import collections
import functools
import math
import operator
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from driver import check, compiled

PROGRAMS: list[Any] = []
X = torch.arange(6.0).reshape(2, 3)


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(pytest.param(fn, args, id=fn.__name__))
        return fn

    return register


class Plain:
    """A user class with a few special methods."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __len__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Plain({self.value})"

    def __call__(self, x: int) -> int:
        return self.value + x

    def __getitem__(self, key: int) -> int:
        if key > 2:
            raise IndexError(key)
        return key * self.value

    def __contains__(self, item: int) -> bool:
        return item == self.value

    def __lt__(self, other: Plain) -> bool:
        return self.value < other.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __add__(self, other: int) -> Plain:
        return Plain(self.value + other)

    def __radd__(self, other: int) -> Plain:
        return Plain(self.value + other * 100)


class Derived(Plain):
    """For isinstance."""


@program(7, 2.5)
def numbers(a, b):
    arithmetic = (
        a + b,
        a // 2,
        -a,
        ~a,
        a**2,
        a % 3,
        a / 2,
        divmod(a, 2),
        abs(-b),
        round(b),
        round(2.675, 2),
        pow(a, 2, 5),
    )
    tests = (
        a < b,
        a == 7.0,
        1 < a < 9,
        bool(a),
        not a,
        a and b,
        0 or b,
        a is a,
        a != b,
        a & 3,
        a | 8,
        a ^ 1,
        a << 2,
        a >> 1,
    )
    made = (
        int(b),
        float(a),
        int("12"),
        int("ff", 16),
        float("1e3"),
        complex(a, b),
        bool([]),
        str(a),
        int(True),
        int.from_bytes(b"\x01", "big"),
    )
    return (
        arithmetic,
        tests,
        made,
        a.bit_length(),
        b.is_integer(),
        (3.0).hex(),
        1e300 * 1e10,
        -0.0,
        min(a, b),
        max(a, 9, b),
    )


@program(2, 0.5)
def mathematics(a, b):
    return (
        math.sqrt(a),
        math.floor(b),
        math.ceil(b),
        math.log(a, 2),
        math.pi,
        math.inf,
        math.prod([1, 2, 3]),
        math.gcd(4, 6),
        math.exp(b),
        math.isnan(b),
        math.comb(4, 2),
        math.hypot(3, 4),
        math.cos(b),
        math.trunc(2.7),
        math.fsum([0.1] * 3),
        math.prod([a, b], start=3),
    )


@program()
def number_errors():
    out = []
    attempts = [
        lambda: 1 / 0,
        lambda: int("x"),
        lambda: "a" + 1,
        lambda: math.sqrt(-1),
        lambda: [] < 1,
        lambda: -"a",
        lambda: len(3),
        lambda: 1 in 2,
        lambda: iter(3),
    ]
    for attempt in attempts:
        try:
            attempt()
        except (ValueError, TypeError, ZeroDivisionError) as error:
            out.append(type(error).__name__)
    return out


@program("Hello World", 3)
def strings(s, n):
    tests = (
        s.startswith(("He", "x")),
        "lo" in s,
        s.isalpha(),
        s < "Z",
        s == "Hello World",
        bool(""),
        s.find("o"),
        s.count("o"),
        s.index("W"),
    )
    made = (
        s.upper(),
        s.split(),
        s.split("o", 1),
        "-".join(["a", s]),
        s[1:4],
        s[::-1],
        s[-1],
        s.replace("l", "L"),
        s * 2,
        s.partition(" "),
    )
    texts = (
        f"{s!r:>15}|{n:03d}|{n / 7:.2f}|{n}",
        "%s has %d" % (s, n),
        "%(a)s" % {"a": n},
        f"{s} {n:>4} {n!r}",
        s.center(15, "*"),
    )
    more = (
        ",".join(str(i) for i in range(n)),
        list(s[:3]),
        sorted(s)[-3:],
        s.encode(),
        b"ab".decode(),
        ord("a"),
        chr(98),
        hex(n),
        s.strip("H"),
        len(s),
    )
    return (
        tests,
        made,
        texts,
        more,
        [c for c in s if c.isupper()],
        s.title().swapcase(),
        s.rsplit(" ")[0].lower().zfill(7),
        {*s} == set(s),
    )


@program([1, (2, "x")], {"k": 1.5}, None)
def texts_of_containers(xs, d, nothing):
    return (
        str(xs),
        repr(d),
        f"{xs} {d} {nothing}",
        "%r" % (xs,),
        str((1,)),
        repr({1}),
        str(range(3)),
        str(int),
        f"{torch.float32}",
        repr("a'b"),
        ascii("é"),
    )


@program(X)
def types_of_values(x):
    p = Derived(2)
    return (
        isinstance(x, torch.Tensor),
        isinstance([], (list, tuple)),
        isinstance(1, int | str),
        isinstance(True, int),
        isinstance(None, type(None)),
        isinstance(p, Plain),
        isinstance(p, (str, Plain)),
        type(p) is Derived,
        type(x) is torch.Tensor,
        issubclass(Derived, Plain),
        issubclass(bool, int),
        isinstance({}, Mapping),
        isinstance({}, collections.abc.Sized),
        isinstance(len, Callable),
        isinstance(x, torch.nn.Parameter),
        callable(p),
        callable(3),
        type([1]),
        float,
        type(None),
        type(int),
        isinstance(int, type),
        p.__class__.__name__,
        isinstance(x.shape, tuple),
        type(x.shape) is torch.Size,
    )


@program(Plain(2))
def attributes(p):
    before = (
        getattr(p, "value"),
        getattr(p, "nope", 3),
        hasattr(p, "value"),
        hasattr(p, "nope"),
        getattr([], "nope", None),
        hasattr(torch, "relu"),
    )
    setattr(p, "extra", [1])
    p.value += 1
    delattr(p, "extra")
    try:
        p.extra
    except AttributeError as error:
        return before, hasattr(p, "extra"), vars(p), type(error) is AttributeError, getattr(p, "__len__")()


@program(Plain(2))
def special_methods(p):
    q = Plain(1)
    return (
        len(p),
        repr(p),
        str(p),
        f"{p}",
        p(5),
        2 in p,
        3 in p,
        p == Plain(2),
        p != q,
        sorted([p, q])[0].value,
        min(p, q).value,
        (p + 1).value,
        (1 + p).value,
        bool(Plain(0)),
        sum([p, 1]).value,
        hash(p) == hash(2),
        p[1],
        max([q, p], key=len).value,
        Plain(3) in [q, Plain(3)],
    )


@program([3, 1, 2])
def aggregates(xs):
    return (
        min(xs),
        max(xs),
        sum(xs),
        sum(xs, 10),
        sum([[1], [2]], []),
        any(xs),
        all(xs),
        any([]),
        all([]),
        min(xs, key=lambda v: -v),
        max([], default=5),
        sorted(xs, key=lambda v: -v),
        sorted(xs, reverse=True),
        max("a", "b"),
        min((1, "z"), (1, "a")),
        any(x > 2 for x in xs),
        all(x > 2 for x in xs),
        len(xs),
    )


@program(X)
def sums_of_tensors(x):
    return sum([x, x * 2]), sum(x), sum((x.sum(), 1)), max([1, 2]), abs(x - 3), pow(x, 2), pow(2, x), -x, +x, x**0.5


@program([5, 6])
def operators_as_functions(xs):
    get = operator.itemgetter(1)
    pair = operator.itemgetter(0, 1)
    made = (
        operator.add(1, 2),
        operator.lt(1, 2),
        operator.getitem(xs, 0),
        operator.contains(xs, 5),
        operator.not_(xs),
        operator.truth(xs),
        operator.neg(3),
    )
    operator.setitem(xs, 0, 9)
    operator.iadd(xs, [7])
    return (
        made,
        get(xs),
        pair(xs),
        operator.attrgetter("real")(3),
        operator.methodcaller("count", 7)(xs),
        operator.is_(xs, xs),
        operator.index(True),
        xs,
        operator.countOf(xs, 6),
    )


@program(X, 3)
def functional_tools(x, n):
    add = functools.partial(lambda a, b, c=0: a + b + c, 1, c=10)
    order = functools.cmp_to_key(lambda a, b: b - a)
    return (
        functools.reduce(operator.mul, [1, 2, n]),
        functools.reduce(lambda a, b: a + [b], "ab", []),
        add(5),
        functools.reduce(torch.add, [x, x, x]),
        sorted([1, 3, 2], key=order),
        list(map(add, [1, 2])),
    )


@program([1, 2])
def methods_as_values(xs):
    push = xs.append
    push(3)
    join = ",".join
    get = {"a": 1}.get
    list.append(xs, 4)
    return (
        xs,
        join(map(str, xs)),
        get("a"),
        get("b", 2),
        str.upper("x"),
        list(map(str.strip, [" a "])),
        dict.get({"k": 1}, "k"),
        list(map(len, ["ab", "c"])),
        int.__add__(1, 2),
        [].__len__(),
        xs.__getitem__(0),
        (1).__add__(2),
        "a".__eq__("a"),
    )


@program(None, ...)
def singletons(nothing, dots):
    return (
        nothing is None,
        dots is ...,
        nothing == None,
        NotImplemented is NotImplemented,
        [nothing] == [None],
        {None: 1}[nothing],
        nothing or 5,
        str(dots),
    )


@program(5)
def type_constructors(n):
    return (
        list(range(n)),
        tuple("ab"),
        set([1, 1]),
        dict(a=1),
        frozenset([n]),
        list({"a": 1}),
        tuple(x for x in [1]),
        bytes([65]),
        bytes(2),
        str(b"a", "ascii"),
        list(),
        dict(),
        tuple(),
        False,
        0,
        "",
        list(zip()),
    )


@pytest.mark.parametrize(("fn", "args"), PROGRAMS)
def test_program(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    subject = check(fn, *args, calls=2)
    assert [event.kind for event in subject.events if event.kind != "graph"] == ["entry"], subject.events


@pytest.mark.parametrize("text", ["print('seen', n)", "id(n)", "open('/dev/null').close()", "hash(object()) and None"])
def test_builtins_with_effects_break_and_still_run(text: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def fn(n):\n    a = n + 1\n    {text}\n    return a", namespace)
    subject = check(namespace["fn"], 1, calls=2)
    assert subject.of_kind("break")


def test_an_instance_check_of_the_user_is_not_run_while_tracing() -> None:
    seen = []

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            seen.append(instance)
            return True

    class Anything(metaclass=Meta):
        pass

    def ask(x):
        return isinstance(x, Anything)

    subject = compiled(ask)
    assert subject(3) is True and seen == [3]
    assert subject.of_kind("break")


class Claiming:
    """Claims another class by `__class__`."""

    def __init__(self, named: Any) -> None:
        self.named = named

    @property
    def __class__(self) -> Any:
        if self.named is None:
            raise AttributeError("no class")
        return self.named


class Asked:
    """Answers every attribute look-up itself."""

    def __getattribute__(self, name: str) -> Any:
        return dict if name == "__class__" else object.__getattribute__(self, name)


PLAIN = Plain(3)


@pytest.mark.parametrize(
    "obj", [Claiming(dict), Claiming(torch.Tensor), Claiming(None), Claiming(3), Asked(), weakref.proxy(PLAIN)]
)
def test_isinstance_believes_what_an_object_says(obj: Any) -> None:
    kinds = [dict, torch.Tensor, Claiming, Plain, (int, Asked)]

    def ask(x):
        return x + 1, [isinstance(obj, kind) for kind in kinds], type(obj) in kinds

    subject = compiled(ask)
    for _ in range(2):
        assert subject(X)[1:] == ask(X)[1:]
