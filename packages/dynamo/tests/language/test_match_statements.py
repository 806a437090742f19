"""Programs with `match`: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# literals and alternatives [whole]
def kind(value):
    match value:
        case 0 | 1:
            return "small"
        case -1.5 | 2j:
            return "odd"
        case "a" | b"a":
            return "text"
        case True | None:
            return "never, or None"
        case _:
            return "other"

def fn(x):
    return x + 1, [kind(value) for value in (0, 1, True, -1.5, 2j, "a", b"a", None, [])]

# sequences [whole]
def size(value):
    match value:
        case []:
            return 0
        case [one]:
            return one
        case [first, *middle, last]:
            return first, middle, last
        case _:
            return "none"

def fn(x):
    found = [size(value) for value in ([], (5,), [1, 2, 3, 4], range(2), "text", {1, 2})]
    return x * 2, found

# sequences of tensors [whole]
def fn(x):
    match [x, [x + 1, 3]]:
        case [a, [b, int(n)]]:
            return a + b * n

# mappings [whole]
def read(value):
    match value:
        case {"a": 1, "b": b, **rest}:
            return b, rest
        case {"a": a}:
            return a
        case {}:
            return "empty"

def fn(x):
    return x + 1, [read(value) for value in ({"a": 1, "b": 2, "c": 3}, {"a": 5}, {}, {"z": 1}, 3)]

# classes [whole]
import dataclasses
@dataclasses.dataclass
class Point:
    a: object
    b: object = 0

class Other:
    __match_args__ = ("n",)
    def __init__(self, n):
        self.n = n

def area(shape):
    match shape:
        case Point(0, b):
            return b
        case Point(a, b=1) | Other(a):
            return a
        case Point(a=a, b=b) if a == b:
            return a * b
        case Point():
            return "point"

def fn(x):
    return x * 3, [area(shape) for shape in (Point(0, 7), Point(4, 1), Other(9), Point(3, 3), Point(2, 5), 1)]

# a class pattern on a tensor [whole]
def fn(x):
    match x:
        case torch.Tensor(ndim=1, shape=(n,)):
            return x * n
        case _:
            return x

# captures and as [whole]
def fn(x):
    match [1, (2, "three")]:
        case [int() as a, (b, str(c)) as pair]:
            return x + a + b, c, pair

# guards with effects [whole]
LOG = []
def seen(n):
    LOG.append(n)
    return n > 2

def fn(x):
    out = []
    for n in (1, 2, 3):
        match n:
            case m if seen(m):
                out.append(m)
            case m:
                out.append(-m)
    return x + len(LOG), out

# names with dots [whole]
import enum
class Color(enum.Enum):
    RED = 1
    BLUE = 2

def name(color):
    match color:
        case Color.RED:
            return "red"
        case Color.BLUE:
            return "blue"
        case _:
            return "none"

def fn(x):
    return x + 1, [name(color) for color in (Color.RED, Color.BLUE, 1)]

# too many patterns [whole]
class Point:
    __match_args__ = ("a",)
    a = 1

def fn(x):
    try:
        match Point():
            case Point(1, 2):
                pass
    except TypeError as error:
        return x + 1, str(error)

# attribute that is missing [whole]
class Point:
    __match_args__ = ("a", "b")
    a = 1

def fn(x):
    match Point():
        case Point(a, b):
            found = "both"
        case Point(a):
            found = a
    return x + 1, found

# a property is read once for each pattern [whole]
class Point:
    count = 0
    @property
    def a(self):
        self.count += 1
        return self.count

def fn(x):
    point = Point()
    match point:
        case Point(a=5):
            found = 5
        case Point(a=2):
            found = 2
    return x + found, point.count

# builtin classes [whole]
def kind(value):
    match value:
        case bool(b):
            return "bool", b
        case int(n) | float(n):
            return "number", n
        case str(s):
            return "str", s
        case list(items) | tuple(items):
            return "items", items
        case dict(d):
            return "dict", d

def fn(x):
    return x + 1, [kind(value) for value in (True, 3, 2.5, "a", [1], (2,), {"k": 1}, None)]

# no case matches [whole]
def fn(x):
    y = x + 1
    match x.shape[0]:
        case 100:
            y = y * 100
    return y

# a match in a loop with break and continue [whole]
def fn(x):
    out = []
    for item in [1, "a", [2], None, 3]:
        match item:
            case int(n):
                out.append(n)
                continue
            case None:
                break
            case _:
                pass
        out.append("other")
    return x * len(out), out

# a value that depends on data [tensor-data-branch]
def fn(x):
    match int(x.sum()):
        case 6:
            return x + 1
        case n:
            return x * n

# attributes that print [print]
class Loud:
    @property
    def n(self):
        print("read")
        return 3

def fn(x):
    out = x + 1
    for value in (Loud(), 2, Loud()):
        match value:
            case Loud(n=4):
                out = out * 4
            case Loud(n=n):
                out = out * n
    return out

# keys of a mapping that prints [mapping-with-its-own-get, print]
class Key:
    name = "a"

class Loud(dict):
    def get(self, key, default):
        print("get", key)
        return super().get(key, default)

def fn(x):
    y = x + 1
    match Loud(a=x, b=2):
        case {Key.name: a, "c": c}:
            return y
        case {Key.name: a, "b": b, **rest}:
            return y * a * b, rest
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
