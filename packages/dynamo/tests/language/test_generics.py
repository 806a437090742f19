"""Programs with type parameters, aliases and deferred annotations: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# type variables made by calls [whole]
from typing import TypeVar
T = TypeVar("T", bound=int)
S = TypeVar("S", int, str)

def fn(x):
    return x + len(S.__constraints__), T.__bound__, T.__name__, T.__covariant__

# generic function outside [whole; 3.12]
def identity[T](value: T) -> T:
    return value

def fn(x):
    return identity(x + 1) * identity(2), identity.__type_params__[0].__name__

# generic function inside [whole; 3.12]
def fn(x):
    def pick[T](first: T, second: T) -> T:
        return first * 2
    return pick(x + 1, x)

# generic function inside with every kind of parameter [whole; 3.12]
def fn(x):
    def pick[T, U: int, *Ts, **P](first: T, second: U) -> T:
        return first * 2
    a, b, c, d = pick.__type_params__
    names = a.__name__, c.__name__, d.__name__, str(type(c))
    return pick(x, 3), names, a.__bound__, a.__constraints__, type(a) is type(b)

# plain attributes of every kind of parameter made inside [whole; 3.12]
def fn(x):
    def pick[T, *Ts, **P](first: T) -> T:
        return first
    shown = []
    for each in pick.__type_params__:
        for name in ("__name__", "__infer_variance__", "__covariant__", "__contravariant__"):
            shown.append((name, getattr(each, name, "none")))
    return x + 1, shown

# generic function inside is returned [whole; 3.12]
def fn(x):
    def pick[T, U: (int, float), V: str](first: T, second: U) -> T:
        return first * second
    return pick(x, 2), pick

# generic function inside, used after a break [print; where lazy types show their functions; 3.12]
def fn(x):
    def pick[T, U: (int, float), V: str](first: T, second: U) -> T:
        return first * second
    y = pick(x, 1)
    print("between")
    return pick(y, 2), [(t.__name__, t.__bound__, t.__constraints__) for t in pick.__type_params__]

# parameters with defaults [print; 3.13]
def fn(x):
    def pick[T = int, *Ts = *tuple[int, str], **P = [int]](first: T) -> T:
        return first * 2
    y = pick(x)
    print("between")
    return pick(y), [t.__default__ for t in pick.__type_params__], [t.has_default() for t in pick.__type_params__]

# a default that is asked for inside [whole; 3.13]
def fn(x):
    def pick[U: str, T = int](first: T) -> T:
        return first * 2
    u, t = pick.__type_params__
    return pick(x), t.has_default(), u.has_default()

# the parameters close over a local [lazily-evaluated-type, print; 3.12]
def fn(x):
    kind = float
    def pick[T: kind](first: T) -> T:
        return first * 3
    y = pick(x)
    print("between")
    return y, pick.__type_params__[0].__bound__

# a method with parameters of its own [whole; 3.12]
class Scale[T]:
    def __init__(self, factor: T) -> None:
        self.factor = factor
    def apply[U](self, value: U) -> U:
        return value * self.factor

def fn(x):
    return Scale(3).apply(x) + Scale[int](2).apply(x), Scale.__type_params__[0].__name__

# generic class with a base [whole; 3.12]
class Base[T]:
    def get(self) -> T:
        return self.value

class Derived[T, U](Base[U]):
    def __init__(self, value):
        self.value = value

def fn(x):
    return Derived(x + 1).get(), [t.__name__ for t in Derived.__type_params__], Derived.__orig_bases__[0] is not None

# generic dataclass [whole; 3.12]
import dataclasses
@dataclasses.dataclass
class Pair[A, B]:
    a: A
    b: B = 2

def fn(x):
    pair = Pair(x, 3)
    return pair.a * pair.b + dataclasses.replace(pair, b=4).b, len(Pair.__type_params__)

# generic named tuple [whole; 3.12]
from typing import NamedTuple
class Pair[T](NamedTuple):
    a: T
    b: int = 2

def fn(x):
    a, b = Pair(x + 1)
    return a * b

# a class without parameters [whole; 3.12]
class Plain:
    pass

class Box[T, *Ts]:
    pass

def fn(x):
    return x + len(Box.__type_params__), Plain.__type_params__, Box[int, str, float].__args__

# bound and constraints of a function outside [whole; 3.12]
def larger[T: (int, float), U: int](a: T, b: T) -> T:
    return a if a > b else b

def fn(x):
    t, u = larger.__type_params__
    return x * larger(2, 3), t.__name__, u.__name__

# bound that is evaluated once [lazily-evaluated-type; 3.12]
seen = []
def note():
    seen.append(1)
    return int

def pick[T: note()](value: T) -> T:
    return value

def fn(x):
    before = len(seen)
    first = pick.__type_params__[0].__bound__
    second = pick.__type_params__[0].__bound__
    return pick(x) + len(seen), before, first, second

# alias outside [whole; where lazy types show their functions; 3.12]
type Plain = list[int]
type Vector[T] = list[T]
def fn(x):
    return x + len(Vector.__type_params__), Vector.__name__, Plain.__name__

# value of an alias outside [print; where lazy types show their functions; 3.12]
type Plain = list[int]
def fn(x):
    numbers: Plain = [1, 2]
    print("between")
    return x + sum(numbers), Plain.__value__

# alias that names nothing yet [break-in-block, lazily-evaluated-type, text-of-object; 3.12]
type Later = Missing
def fn(x):
    y = x + 1
    try:
        Later.__value__
    except NameError as error:
        return y, str(error)

# alias that names itself [print, text-of-object; where lazy types show their functions; 3.12]
type Nested = list[Nested] | int
def fn(x):
    print("before")
    value: Nested = [1, [2]]
    return x + len(value), str(Nested.__value__)

# alias inside that is not evaluated [whole; 3.12]
def fn(x):
    type Pair[T] = tuple[T, Unknown]
    type Plain = Unknown
    return x * 2, Pair.__name__, len(Pair.__type_params__), Plain.__type_params__

# alias inside after a break [print; where lazy types show their functions; 3.12]
def fn(x):
    y = x + 1
    type Pair[T] = tuple[T, T]
    print("between")
    return y * 2, str(Pair.__value__), Pair.__type_params__[0].__name__

# alias in isinstance of annotations [whole; 3.12]
type Number = int | float
def scaled(value, factor: Number = 2):
    return value * factor

def fn(x):
    return scaled(x) + scaled(x, 3)

# parameter that shadows [whole; 3.12]
T = 3
def fn(x):
    def pick[T](value: T):
        return value * 2
    return pick(x) * T

# annotations deferred and never evaluated [whole; 3.14]
def scaled(x: Missing, *, factor: AlsoMissing = 2) -> Nothing:
    return x * factor

def fn(x):
    return scaled(x) + scaled(x, factor=3)

# annotations of a function made inside, never evaluated [whole; where annotations are deferred]
def fn(x):
    def scaled(value: Missing, factor: AlsoMissing = 2) -> Nothing:
        return value * factor
    return scaled(x, 3)

# annotations of a class outside, never evaluated [whole; 3.14]
class Point:
    a: Missing
    b: "float" = 2.0
    def shift(self, x: Later) -> Nothing:
        return x + self.b

def fn(x):
    return Point().shift(x)

# annotated locals [whole]
def fn(x):
    count: int = 2
    name: undefined_name
    total: "anything" = x * count
    return total

# annotations as strings in an old style [whole]
from __future__ import annotations
def scaled(value: Missing, factor: float = 2.0) -> Nothing:
    return value * factor

def fn(x):
    return scaled(x), scaled.__annotations__["factor"], len(scaled.__annotations__)

# annotations of a function outside, read [whole]
def scaled(value: int, factor: float = 2.0) -> str:
    return value * factor

def fn(x):
    return scaled(x), list(scaled.__annotations__), scaled.__annotations__["return"]
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
