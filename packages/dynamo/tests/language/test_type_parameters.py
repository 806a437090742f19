"""Programs with type parameters, deferred annotations and lazily evaluated names: compiled and in eager mode."""

from __future__ import annotations

import pytest
from language_programs import check_program, titled

PROGRAMS = """
# generic function [3.12]
def identity[T](value: T) -> T:
    return value

def fn(x):
    y = identity(x + 1)
    print("between")
    return identity(y * 2), identity.__type_params__[0].__name__

# generic function made inside [3.12]
def fn(x):
    def pick[T](first: T, second: T) -> T:
        return first
    print("made")
    return pick(x + 1, x)

# generic closure over a tensor [3.12]
def fn(x):
    y = x * 3
    def add[T: float](other: T) -> T:
        return y + other
    z = add(x)
    print("called")
    return add(z)

# generic class made outside [3.12]
class Box[T]:
    def __init__(self, value: T) -> None:
        self.value = value
    def get(self) -> T:
        return self.value

def fn(x):
    box = Box(x + 1)
    print("boxed")
    box.value = box.get() * 2
    return box.get()

# generic class, subscripted [3.12]
class Box[T]:
    def __init__(self, value):
        self.value = value

def fn(x):
    box = Box[int](x + 1)
    print(box.__orig_class__)
    return box.value * 2

# generic class made inside [3.12]
def fn(x):
    class Pair[A, B]:
        def __init__(self, a: A, b: B) -> None:
            self.a, self.b = a, b
    pair = Pair(x, x + 1)
    print(Pair.__type_params__[0].__name__)
    return pair.a + pair.b

# type alias outside [3.12]
type Vector = list[float]

def fn(x):
    numbers: Vector = [1.0, 2.0]
    print(Vector.__name__)
    return x + sum(numbers)

# type alias inside [3.12]
def fn(x):
    y = x + 1
    type Pair[T] = tuple[T, T]
    print(Pair.__value__)
    return y * 2

# parameters of every kind [3.12]
def call[**P, R, *Ts](function, *args: *Ts):
    return function(*args)

def fn(x):
    y = call(lambda a, b: a + b, x, 1)
    print("called")
    return call(abs, y - 3)

# bound and constraints [3.12]
def larger[T: (int, float)](a: T, b: T) -> T:
    return a if a > b else b

def fn(x):
    y = x * larger(2, 3)
    print(larger.__type_params__[0].__constraints__)
    return y + larger(1.5, 0.5)

# default of a parameter [3.13]
def first[T = int](values: list[T]) -> T:
    return values[0]

def fn(x):
    y = first([x, 2]) + 1
    print(first.__type_params__[0].__default__)
    return y

# annotations that name nothing yet [3.14]
def scaled(x: Missing, factor: AlsoMissing = 2) -> Nothing:
    return x * factor

def fn(x):
    y = scaled(x)
    print("scaled")
    return scaled(y, 3)

# annotations of a function made inside
def fn(x):
    def scaled(value: int, *, factor: float = 2.0) -> str:
        return value * factor
    y = scaled(x)
    print(sorted(scaled.__annotations__))
    return scaled(y, factor=3.0)

# annotations that close over a local
def fn(x):
    kind = int
    def scaled(value: kind) -> kind:
        return value * 2
    y = scaled(x)
    print(scaled.__annotations__["value"])
    return y + 1

# annotations that are read, and changed
def fn(x):
    def scaled(value: int) -> int:
        return value * 2
    scaled.__annotations__["extra"] = str
    print("extra" in scaled.__annotations__)
    return scaled(x), len(scaled.__annotations__)

# annotations of a global function
def scaled(value: int) -> float:
    return value * 2

def fn(x):
    y = scaled(x)
    names = list(scaled.__annotations__)
    print(names)
    return y + len(names)

# annotations whose evaluation has an effect
seen = []
def note(what):
    seen.append(what)
    return int
def scaled(value: note("value")):
    return value * 2

def fn(x):
    before = len(seen)
    y = scaled(x)
    first = len(seen)
    scaled.__annotations__
    print(before, first, len(seen))
    return y + len(seen)

# annotations that fail [3.14]
def scaled(value: Missing):
    return value * 2

def fn(x):
    y = scaled(x)
    try:
        found = len(scaled.__annotations__)
    except NameError as error:
        found = 10
    print("read")
    return y + found

# annotated locals
def fn(x):
    count: int = 2
    name: undefined_name
    y = x * count
    print("annotated")
    total: "anything" = y + 1
    return total

# annotations of a class [3.14]
class Point:
    a: int
    b: "float" = 2.0
    def shift(self, x: Later) -> Later:
        return x + self.b

class Later:
    pass

def fn(x):
    point = Point()
    y = point.shift(x)
    print(sorted(Point.__annotations__))
    return y * len(Point.__annotations__)

# wrapped function
import functools
def doubled(function):
    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return function(*args) * 2
    return wrapper

def fn(x):
    @doubled
    def shifted(value: int) -> int:
        "Shift."
        return value + 1
    y = shifted(x)
    print(shifted.__name__, shifted.__doc__)
    return y - 1

# signature of an annotated function [3.14]
import inspect
def scaled(value: int, factor: float = 2.0) -> int:
    return value * factor

class Scale:
    def __call__(self, value: int, *, factor: "float" = 2.0) -> Scale:
        return value * factor

def fn(x):
    found = inspect.signature(scaled).parameters
    names = [*found, *inspect.signature(Scale.__call__).parameters]
    print(names)
    return x + len(names), found["value"].annotation, found["factor"].default

# signature of a function whose annotations fail [3.14]
import inspect
def scaled(value: Missing) -> Missing:
    return value * 2

def fn(x):
    y = scaled(x)
    try:
        return y, list(inspect.signature(scaled).parameters)
    except NameError as error:
        print(error)
        return y + 1

# dataclass [3.12]
import dataclasses
@dataclasses.dataclass
class Scale[T]:
    factor: T
    bias: float = 1.0

def fn(x):
    scale = Scale(3)
    y = x * scale.factor + scale.bias
    print(scale)
    return dataclasses.replace(scale, bias=2.0).bias + y

# named tuple [3.12]
from typing import NamedTuple
class Pair[T](NamedTuple):
    a: T
    b: int = 2

def fn(x):
    pair = Pair(x + 1)
    print(pair.b)
    return pair.a * pair.b
"""


@pytest.mark.parametrize("text", titled(PROGRAMS))
def test_program(text: str) -> None:
    check_program(text)
