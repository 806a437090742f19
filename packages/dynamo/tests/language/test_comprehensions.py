"""Programs with comprehensions and generator expressions in all their forms: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# list, set and dict [whole]
def fn(x):
    a = [i * 2 for i in range(4) if i % 2]
    b = {i % 2 for i in range(4)}
    c = {i: i * i for i in range(3)}
    return x * len(a) + len(b) + c[2], a, b, c

# tensors in a comprehension [whole]
def fn(x):
    return [x * i for i in range(3)], {i: x + i for i in range(2)}

# nested, with the same name [whole]
def fn(x):
    i = 10
    rows = [[i * j for i in range(2)] for j in range(3)]
    return x + i, rows

# several loops and conditions [whole]
def fn(x):
    pairs = [(i, j) for i in range(4) if i % 2 for j in range(i) if j != 1]
    return x * len(pairs), pairs

# a local of the function inside [whole]
def fn(x):
    n = x.shape[0]
    return x + sum([n * i for i in range(3)]), [n for n in range(2)], n

# a name that is unbound before and after [whole]
def fn(x):
    out = [j for j in range(3)]
    try:
        j
    except NameError as error:
        return x + len(out), type(error).__name__, str(error)

# a name that is bound after [whole]
def fn(x):
    out = [k for k in range(3)]
    k = 5
    return x + k, out

# walrus [whole]
def fn(x):
    out = [last := i * 2 for i in range(3)]
    return x + last, out

# walrus in a condition [whole]
def fn(x):
    out = [y for i in range(4) if (y := i * i) > 1]
    return x * y, out

# walrus of a global [whole]
total = 0
def fn(x):
    global total
    out = [total := total + i for i in range(3)]
    return x + total, out

# closures over the loop's variable [whole]
def fn(x):
    functions = [lambda: i for i in range(3)]
    return x + functions[0](), [function() for function in functions]

# closures with defaults [whole]
def fn(x):
    n = 2
    functions = [lambda y, i=i: y * i + n for i in range(3)]
    n = 5
    return [function(x) for function in functions]

# a cell of the function as the loop's variable [whole]
def fn(x):
    n = 7
    def get():
        return n
    out = [n for n in range(3)]
    return x + get(), out

# a cell of both [whole]
def fn(x):
    n = 7
    def get():
        return n
    inner = [(lambda: n) for n in range(3)]
    return x + get() + inner[1](), n

# class scope [unknown-instruction, unsupported-call]
def fn(x):
    class Holder:
        n = 2
        values = [i for i in range(n)]
    return x * len(Holder.values)

# class outside with comprehensions [whole]
class Holder:
    n = 3
    rows = [[i + j for j in range(2)] for i in range(n)]
    table = {k: v for k, v in zip("ab", range(n))}
    made = tuple(i * 2 for i in range(n))

def fn(x):
    return x * Holder.rows[2][1] + Holder.table["b"], Holder.made

# generator expression that is consumed lazily [whole]
LOG = []
def note(n):
    LOG.append(n)
    return n

def fn(x):
    numbers = (note(i) for i in range(5))
    first = next(numbers)
    second = next(numbers)
    return x + first + second, list(LOG), [*numbers]

# generator expression whose first iterable is evaluated at once [whole]
LOG = []
def source():
    LOG.append("source")
    return [1, 2]

def fn(x):
    numbers = (i * 2 for i in source())
    before = list(LOG)
    return x + sum(numbers), before

# nested generator expressions [whole]
def fn(x):
    return x + sum(sum(j for j in range(i)) for i in range(4)), max(i % 3 for i in range(5))

# a comprehension that raises [whole]
def fn(x):
    i = 7
    try:
        [1 / (i - 1) for i in range(3)]
    except ZeroDivisionError as error:
        return x + i, str(error)

# a comprehension around try in a call [whole]
def safe(n):
    try:
        return 6 // n
    except ZeroDivisionError:
        return None

def fn(x):
    return x + 1, [safe(n) for n in (2, 0, 3)], [value for n in (0, 1) if (value := safe(n)) is not None]

# unpacking targets [whole]
def fn(x):
    pairs = [(1, (2, 3)), (4, (5, 6))]
    return x + sum(a * b + c for a, (b, c) in pairs), [rest for _, *rest in ([1, 2, 3], [4])], [k for k, in ([1],)]

# starred and indexed targets [whole]
def fn(x):
    d = {}
    items = [0, 0]
    out = [1 for d["k"] in range(3)]
    again = [2 for items[0], items[1] in [(1, 2), (3, 4)]]
    return x + d["k"] + items[1], len(out), len(again)

# locals in a comprehension [whole]
def fn(x):
    n = 1
    names = [sorted(locals()) for _ in (1,)][0]
    return x + n, [name for name in names if name in ("n", "_")]

# a lambda with a comprehension [whole]
def fn(x):
    double = lambda items: [y * 2 for y in items]
    return double([x, x + 1])

# conditional expressions inside [whole]
def fn(x):
    return [x if i else x + 1 for i in range(2)], ["a" if i > 1 else "b" if i else "c" for i in range(3)]

# a data-dependent condition [tensor-data-branch]
def fn(x):
    return [i for i in range(3) if x.sum() > i], x + 1

# a break in the middle [print]
def noted(n):
    print(n)
    return n

def fn(x):
    y = x + 1
    return [y * noted(i) for i in range(3)]

# a break in a nested one [print]
def noted(n):
    print(n)
    return n

def fn(x):
    y = x + 1
    return [[y * noted(i + j) for j in range(2)] for i in range(2)]

# asynchronous comprehension [coroutine-call, not-inlined]
import asyncio
async def numbers():
    for i in range(3):
        yield i

async def main(x):
    return [x + i async for i in numbers()], {i: x async for i in numbers() if i}

def fn(x):
    return asyncio.run(main(x))

# unpacking in a list [whole; 3.15]
def fn(x):
    lists = [[1, 2], [], (3,)]
    flat = [*part for part in lists]
    return x + len(flat), flat

# unpacking in a set and a generator [whole; 3.15]
def fn(x):
    parts = ([1, 2], (2, 3))
    return x + len({*part for part in parts}), list((*part for part in parts))

# unpacking in a dict [whole; 3.15]
def fn(x):
    tables = [{"a": 1, "b": 2}, {"b": 3}]
    merged = {**table for table in tables}
    return x + merged["b"], merged

# unpacking of tensors [whole; 3.15]
def fn(x):
    rows = [*part for part in ((x, x + 1), [x * 2])]
    return rows[0] + rows[2], len(rows)

# unpacking of what is no iterable [whole; 3.15]
def fn(x):
    try:
        return [*part for part in [[1], 2]]
    except TypeError as error:
        return x + 1, type(error).__name__
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
