"""Objects of classes that are called indirectly: typed dicts, generic aliases, metaclasses."""

import collections
import dataclasses
import typing

import pytest
import torch
from driver import check

X = torch.arange(3.0)
T = typing.TypeVar("T")


class Options(typing.TypedDict, total=False):
    a: int
    b: typing.Required[int]


class Nested(typing.TypedDict):
    inner: Options
    rest: list


class Generic(typing.TypedDict, typing.Generic[T]):
    value: T


Functional = typing.TypedDict("Functional", {"x": int, "y-z": list}, total=False)


class Box(typing.Generic[T]):
    def __init__(self, value):
        self.value = value


class Slots(typing.Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@dataclasses.dataclass
class Data(typing.Generic[T]):
    value: T
    k: int = 1


class Named(typing.NamedTuple, typing.Generic[T]):
    a: T
    b: int = 2


class Calls(type):
    __call__ = dict


class MadeByDict(metaclass=Calls):
    pass


class CallsStatic(type):
    __call__ = staticmethod(lambda *args, **kwargs: (args, kwargs))


class MadeByStatic(metaclass=CallsStatic):
    pass


def changed(x):
    made = Options(b=1)
    made["a"] = x
    made.update(b=2)
    made |= {"c": 3}
    return made, list(made), "a" in made, type(made).__name__


def of_an_alias(x):
    box = Box[int](3)
    return x + box.value, box.__orig_class__ == Box[int]


WHOLE = {
    "total": lambda x: (x + Nested(inner=Options(b=1), rest=[])["inner"]["b"], Nested({"inner": {}, "rest": [x]})),
    "functional": lambda x: (x + Functional(x=1)["x"], Functional({"y-z": [x]})),
    "generic": lambda x: (x + Generic(value=2)["value"], Generic[int](value=x)),
    "in a loop": lambda x: sum((Options(b=i)["b"] for i in range(4)), x),
    "changed": lambda x: (x + 1, changed(x)),
    "instance": lambda x: (x + 1, isinstance(Options(b=1), dict), issubclass(type(Options(b=2)), dict)),
    "metaclass": lambda x: (x + MadeByDict(a=1)["a"], MadeByDict([(1, x)])),
    "static": lambda x: (x + 1, MadeByStatic(1, a=x)),
    "builtin aliases": lambda x: (
        x + list[int]((1, 2))[1], list[int](), dict[str, int](a=1), tuple[int, ...]([1]), set[int]([1]),
    ),
    "alias": of_an_alias,
    "alias with slots": lambda x: x + Slots[int](3).value,
    "alias of data": lambda x: (x + Data[int](3).value, Data[int](3, k=2).k, Data[int](3) == Data(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_made_in_one_graph(name):
    compiled = check(WHOLE[name], X)
    assert len(compiled.graphs) == 1
    assert not compiled.of_kind("break")


REFUSED = {
    "aliases of collections": lambda x: (x + 1, collections.deque[int]([1]), collections.defaultdict[str, int](int)),
    "ordered": lambda x: (x + 1, collections.OrderedDict[str, int](a=1)),
    "bad argument": lambda x: (x + 1, Options(1)),
    "instance check": lambda x: (x + 1, isinstance({}, Options)),
    "named": lambda x: (x + Named[int](4).a, Named[int](1, 2)),
    "typing's list": lambda x: (x + 1, typing.List[int]((1,))),  # noqa: UP006
}


@pytest.mark.parametrize("name", REFUSED)
def test_as_eager(name):
    check(REFUSED[name], X)
