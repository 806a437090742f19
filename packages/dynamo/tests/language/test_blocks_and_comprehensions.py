"""Programs with newer forms of `try`, `with`, `match`, comprehensions, imports and coroutines."""

from __future__ import annotations

import pytest
from language_programs import check_program, titled

PROGRAMS = """
# except star
def fn(x):
    y = x + 1
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError(2)])
    except* ValueError as group:
        print(group.exceptions)
        y = y * 2
    except* TypeError:
        y = y + 5
    return y

# except star with a rest
def fn(x):
    y = x + 1
    try:
        try:
            print("inside")
            raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
        except* ValueError:
            y = y * 2
    except ExceptionGroup as rest:
        return y, len(rest.exceptions)

# except star around a plain exception
def fn(x):
    y = x * 2
    try:
        [][y.shape[0]]
    except* IndexError as group:
        print(type(group).__name__)
        y = y - 1
    return y

# except without parentheses [3.14]
def fn(x):
    y = x + 1
    try:
        print("try")
        {}["a"]
    except KeyError, IndexError:
        y = y * 2
    return y

# except with notes
def fn(x):
    y = x + 1
    try:
        raise ValueError("one")
    except ValueError as error:
        error.add_note("noted")
        print(error.__notes__)
        return y * 2

# finally around a break
def fn(x):
    y = x + 1
    try:
        print("try")
        y = y * 2
        return y
    finally:
        print("finally")
        y += 1

# finally that continues a loop
def fn(x):
    y = x
    for i in range(3):
        try:
            y = y + i
            print(i)
            if i == 1:
                continue
        finally:
            y = y * 2
    return y

# with of a Python manager
class Noted:
    def __enter__(self):
        print("enter")
        return 2
    def __exit__(self, kind, error, trace):
        print("exit", kind)
        return False

def fn(x):
    with Noted() as n:
        y = x * n
        print("inside")
        y = y + 1
    return y

# with in parentheses
class Noted:
    def __init__(self, n):
        self.n = n
    def __enter__(self):
        print("enter", self.n)
        return self.n
    def __exit__(self, *what):
        print("exit", self.n, what[0])

def fn(x):
    with (Noted(1) as a, Noted(2) as b,):
        y = x * a + b
        print("inside")
    return y * 2

# with that swallows
class Quiet:
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        self.kind = kind
        return True

def fn(x):
    quiet = Quiet()
    y = x + 1
    with quiet:
        print("before")
        y = y * 2
        [][3]
    print(quiet.kind)
    return y

# with that is left by return
class Noted:
    def __enter__(self):
        return self
    def __exit__(self, *what):
        print("exit", what[0])

def fn(x):
    for i in range(3):
        with Noted():
            y = x + i
            print(i)
            if i:
                return y * 2

# with that is left by break and continue
class Noted:
    def __enter__(self):
        return self
    def __exit__(self, *what):
        print("exit", what[0])

def fn(x):
    for i in range(5):
        with Noted() as noted:
            x = x + i
            print(i)
            if i == 1:
                continue
            if i == 3:
                break
    return x

# with a lock
import threading
lock = threading.Lock()
def fn(x):
    y = x + 1
    with lock:
        z = y * 2
        print(lock.locked())
        z = z + y
    print(lock.locked())
    return z

# with a manager whose exit is no method
class Odd:
    __exit__ = staticmethod(lambda *what: print("exit", len(what)))
    def __enter__(self):
        return 3

def fn(x):
    y = x + 1
    with Odd() as n:
        print("inside")
        y = y * n
    return y

# with a file
import os, tempfile
def fn(x):
    y = x + 1
    with open(os.devnull, "w") as sink:
        print("into", file=sink)
        y = y * 2
    return y, sink.closed

# with a manager that suppresses
import contextlib
def fn(x):
    y = x + 1
    with contextlib.suppress(KeyError), contextlib.nullcontext(5) as n:
        y = y * n
        print("inside")
        {}[1]
        y = y * 100
    return y

# with a generator's manager
import contextlib
@contextlib.contextmanager
def scaled(n):
    print("enter", n)
    try:
        yield n
    finally:
        print("exit", n)

def fn(x):
    with scaled(3) as n:
        y = x * n
        print("inside")
    return y + 1

# with no_grad and a break
def fn(x):
    with torch.no_grad():
        y = x + 1
        print(torch.is_grad_enabled())
        z = y * 2
    return z, torch.is_grad_enabled()

# with something that is no manager
def fn(x):
    y = x + 1
    try:
        with y.shape:
            pass
    except (TypeError, AttributeError) as error:
        print(type(error).__name__, error)
    return y * 2

# comprehension with a break
def fn(x):
    y = x + 1
    out = [y * i for i in range(3) if print(i) is None]
    return out

# comprehensions inside each other
def fn(x):
    i = 10
    rows = [[i * j + len(x) for j in range(2)] for i in range(3)]
    print(rows, i)
    return x + rows[2][1] + i

# comprehension in a closure
def fn(x):
    n = 2
    functions = [lambda y, i=i: y * i + n for i in range(3)]
    print(len(functions))
    n = 5
    return [function(x) for function in functions]

# comprehension whose variable is captured
def fn(x):
    functions = [lambda: i for i in range(3)]
    print("made")
    return x + functions[0]()

# comprehension that raises
def fn(x):
    i = 7
    try:
        [1 / (i - 1) for i in range(3)]
    except ZeroDivisionError:
        print(i)
    return x + i

# comprehension of a class body
def fn(x):
    n = 3
    class Holder:
        values = [n * i for i in range(3)]
    print(Holder.values)
    return x * Holder.values[2]

# all, any and tuple of a generator
def fn(x):
    y = x + 1
    if all(n > 0 for n in (1, 2, 3)) and any(n > 2 for n in (1, 2, 3)):
        y = y * 2
    print(tuple(n * 2 for n in (1, 2)), all(n > 1 for n in (1, 2)), any(n > 5 for n in (1, 2)))
    return y, tuple(y * n for n in (1, 2)), list(n for n in (1, 2)), set(n for n in (1, 1))

# all and any of tensors, with a break
def noted(n):
    print(n)
    return n

def fn(x):
    y = x + 1
    found = all(noted(n) < 2 for n in range(4)), any(noted(n) > 1 for n in range(4))
    return y, found, tuple(noted(n) for n in range(2))

# other functions named all and any
def all(values):
    return "mine", list(values)

def fn(x):
    y = x + 1
    print("before")
    found = all(n for n in range(3))
    any = max
    return y, found, any(n for n in range(3)), tuple

# walrus in a comprehension
def fn(x):
    y = x
    out = [last := i * 2 for i in range(3)]
    print(last)
    return y + last, out

# match
def fn(x):
    out = []
    for shape in ({"n": 2, "rest": 1}, [1, 2, 3], (4,), "text", 5, None):
        match shape:
            case {"n": n, **rest}:
                out.append(x + n)
                print(rest)
            case [first, *others]:
                out.append(x * first + len(others))
            case str() | None as found:
                out.append(found)
            case int(n) if n > 3:
                out.append(x - n)
    return out

# generator with a break
def numbers(n):
    for i in range(n):
        print("yield", i)
        yield i

def fn(x):
    y = x
    for i in numbers(3):
        y = y + i
    return y * 2

# generator that delegates
def inner():
    got = yield 1
    return got or 5

def outer():
    result = yield from inner()
    yield result

def fn(x):
    y = x + sum(outer())
    print("between")
    return y + sum(outer())

# coroutine
import asyncio
async def add(x):
    await asyncio.sleep(0)
    return x + 1

def fn(x):
    y = x * 2
    z = asyncio.run(add(y))
    print("ran")
    return z + y

# asynchronous with, for and comprehension
import asyncio
class Noted:
    async def __aenter__(self):
        return 2
    async def __aexit__(self, *what):
        print("exit", what[0])

async def numbers():
    for i in range(3):
        yield i

def scale(x, n):
    y = x * n
    print("scaled")
    return y + 1

async def main(x):
    async with Noted() as n:
        y = scale(x, n)
    async for i in numbers():
        y = scale(y, i + 1)
    return [scale(y, i) async for i in numbers()]

def fn(x):
    return asyncio.run(main(x + 1))

# task group
import asyncio
async def double(x):
    return x * 2

async def main(x):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(x + i)) for i in range(2)]
    return [task.result() for task in tasks]

def fn(x):
    y = x + 1
    return asyncio.run(main(y))

# partial with a placeholder [3.14]
from functools import Placeholder, partial
def subtract(a, b):
    return a - b

def fn(x):
    less = partial(subtract, Placeholder, 1)
    y = less(x)
    print("between")
    return less(y)

# map that is strict
def fn(x):
    y = x
    for a, b in zip((1, 2), (3, 4), strict=True):
        y = y * a + b
    print("zipped")
    try:
        for a, b in zip((1, 2), (3,), strict=True):
            y = y + a
    except ValueError as error:
        print(error)
    return y

# lambda defaults and positional-only
def fn(x):
    def call(a, /, b=2, *rest, c: int = 3, **others):
        return a * b + c + len(rest) + len(others)
    y = call(x)
    print("called")
    return call(y, 1, 2, 3, c=4, d=5)

# locals of a comprehension
def fn(x):
    n = 1
    found = [sorted(locals()) for _ in (1,)]
    print(len(found))
    return x + n

# super in a comprehension
class Base:
    def scale(self, x):
        return x * 2

class Derived(Base):
    def scale(self, x):
        return [super(Derived, self).scale(x) for _ in (1,)][0] + super().scale(x)

def fn(x):
    y = Derived().scale(x)
    print("scaled")
    return y + 1

# unpacking in a comprehension [3.15]
def fn(x):
    lists = [[1, 2], [3]]
    flat = [*part for part in lists]
    print(flat, {**d for d in ({"a": 1}, {"b": 2})})
    return x + len(flat)

# lazy import [3.15]
lazy import colorsys
lazy from fractions import Fraction

def fn(x):
    y = x + 1
    print(colorsys.__name__)
    return y * float(Fraction(1, 2))

# annotations in other formats [3.14]
import annotationlib

def fn(x):
    def made(a: int, b: absent, c: x) -> list[absent]:
        return []

    try:
        annotationlib.get_annotations(made)
    except NameError as error:
        raised = str(error)
    text = annotationlib.get_annotations(made, format=annotationlib.Format.STRING)
    lazy = annotationlib.get_annotations(made, format=annotationlib.Format.FORWARDREF)
    return x + 1, text, sorted(lazy), type(lazy["b"]).__name__, raised

# names that modules lack
import colorsys, sys, types

computing = sys.modules["computing"] = types.ModuleType("computing")
asked = []

def compute(name):
    asked.append(name)
    if name == "made":
        return 3
    raise AttributeError(name)

computing.__getattr__ = compute

def fn(x):
    from computing import made
    y = x * made
    found = []
    try:
        computing.missing
    except AttributeError as error:
        found.append(str(error))
    try:
        from computing import missing
    except ImportError as error:
        found.append((str(error), error.name, error.name_from))
    try:
        from colorsys import missing
    except ImportError as error:
        found.append(str(error).partition("(")[0])
    return y + 1, found, len(asked)

# lazy imports that fail [3.15]
lazy import no_such_module
lazy from fractions import no_such_name

def fn(x):
    y = x + 1
    try:
        no_such_module.name
    except ImportError as error:
        first = type(error).__name__, str(error)
    try:
        no_such_name
    except ImportError as error:
        second = type(error).__name__
    y = y * 2
    if y[0] > 4:
        no_such_module
    return y, first, second

# a lazy import that nothing has used [3.15]
lazy import colorsys

def kind():
    return type(globals()["colorsys"]).__name__

def fn(x):
    y = x + 1
    before = globals().get("colorsys").__class__.__name__, kind()
    y = y * len(colorsys.__name__)
    return y, before[0] == kind(), kind()

# frozendict [3.15]
shared = frozendict(a=1, b=2)

def fn(x):
    y = x + shared["a"]
    made = frozendict(c=3)
    print(len(shared), made["c"])
    return y * made["c"], sorted(shared | made)

# sentinel [3.15]
MISSING = sentinel("MISSING")

def pick(x, n=MISSING):
    return x if n is MISSING else x * n

def fn(x):
    y = pick(x + 1)
    print(MISSING)
    return pick(y, 2)
"""


@pytest.mark.parametrize("text", titled(PROGRAMS))
def test_program(text: str) -> None:
    check_program(text)
