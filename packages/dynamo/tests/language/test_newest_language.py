"""Programs with what CPython 3.14 and 3.15 brought, and lazy imports: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# frozendict outside [whole; 3.15]
shared = frozendict(a=1, b=torch.ones(4))
def fn(x):
    return x * shared["a"] + shared["b"], list(shared), len(shared), "a" in shared, shared.get("z", 7)

# frozendict with keys that are objects [whole; 3.15]
class Key:
    pass
key = Key()
table = frozendict({key: 5, "n": 2})
def fn(x):
    return x * table[key] + table["n"], [type(k).__name__ for k in table], Key() in table

# frozendict made inside [whole; 3.15]
frozendict
def fn(x):
    made = frozendict(a=x + 1, b=2)
    return made["a"] * made["b"], sorted(made), list(made.items())[1], [*reversed(made)], {**made}["b"]

# frozendict returned [whole; 3.15]
frozendict
def fn(x):
    made = frozendict(a=x + 1, b=2)
    return made, (made, made)

# frozendict behind a break [print; 3.15]
frozendict
def fn(x):
    made = frozendict(a=x + 1, b=2)
    print("between")
    return made["a"] * made["b"], len(made)

# frozendict whose keys change from call to call [whole; 3.15]
frozendict
COUNT = [0]
def use(x, table):
    return x * table["n"] + len(table), [k for k in table]

def fn(x):
    COUNT[0] += 1
    return use(x, frozendict({COUNT[0]: x, "n": COUNT[0] % 2}))

# unions of frozendicts [whole; 3.15]
frozendict
def fn(x):
    a = frozendict(p=1, q=2)
    left, right = a | {"r": 3}, {"r": 3} | a
    a |= {"q": 5}
    return x + len(left), type(left).__name__, type(right).__name__, list(right), a, a | {} is a

# frozendict as a key [whole; 3.15]
frozendict
def fn(x):
    one, two = frozendict(p=1, q=(2, 3)), frozendict(q=(2, 3), p=1)
    table = {one: 1, two: 2}
    found = one == two, one == {"p": 1, "q": (2, 3)}, one in {two}, hash(one) == hash(two)
    return x + table[one], len(table), found

# what frozendicts refuse [whole; 3.15]
frozendict
def fn(x):
    made = frozendict(a=1)
    out = []
    for refused in (
        lambda: made["z"],
        lambda: made.pop("a"),
        lambda: made.update({}),
        lambda: frozendict(5),
        lambda: frozendict(1, 2),
        lambda: made | 5,
        lambda: made < made,
        lambda: made.x,
        lambda: hash(frozendict(a=[])),
    ):
        try:
            out.append(refused())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return x + 1, out

# items of frozendicts cannot be set [whole; 3.15]
frozendict
def fn(x):
    made = frozendict(a=1)
    out = []
    try:
        made["a"] = 2
    except TypeError as error:
        out.append(str(error))
    try:
        del made["a"]
    except TypeError as error:
        out.append(str(error))
    return x + made["a"], out

# frozendict in match [whole; 3.15]
frozendict
def fn(x):
    match frozendict(a=1, b=2):
        case {"a": n, **rest}:
            return x + n, rest

# frozendict of keys [whole; 3.15]
frozendict
def fn(x):
    made = frozendict.fromkeys("ab", 3)
    return x * made["b"], made, frozendict(made) is made, made.copy() is made

# frozendict as keywords [whole; 3.15]
frozendict
def scaled(x, *, factor, bias=0):
    return x * factor + bias

def fn(x):
    return scaled(x, **frozendict(factor=3)), scaled(x, **frozendict(factor=2, bias=1))

# sentinel as a default [whole; 3.15]
MISSING = sentinel("MISSING")
def pick(x, n=MISSING):
    return x if n is MISSING else x * n

def fn(x):
    return pick(x) + pick(x, 2), MISSING.__name__, repr(MISSING), MISSING == MISSING

# sentinel as a key and in match [whole; 3.15]
MISSING = sentinel("MISSING")
table = {MISSING: 2}
class Names:
    missing = MISSING

def fn(x):
    match MISSING:
        case Names.missing:
            found = "missing"
    return x * table[MISSING], found, bool(MISSING)

# placeholders [whole; 3.14]
from functools import Placeholder as _, partial
def subtract(a, b, c=0):
    return a - b * c

outer = partial(subtract, _, 2)
def fn(x):
    half = partial(subtract, _, 3, c=2)
    both = partial(partial(subtract, _, _, 4), _, 1)
    return half(x) + outer(x, 4), both(x), half.args[0] is _, len(both.args)

# what placeholders refuse [whole; 3.14]
from functools import Placeholder as _, partial
def subtract(a, b, c=0):
    return a - b * c

def fn(x):
    out = []
    half = partial(subtract, _, 3)
    for refused in (lambda: half(), lambda: partial(subtract, _), lambda: partial(subtract, 1, c=_)):
        try:
            refused()
        except TypeError as error:
            out.append(str(error))
    return x + 1, out

# lazy import [import-runs-code; 3.15]
lazy import colorsys
lazy from fractions import Fraction

def fn(x):
    y = x + 1
    name = colorsys.__name__
    return y * float(Fraction(1, 2)), name

# lazy import that is never needed [whole; 3.15]
lazy import no_module_of_this_name

def fn(x):
    return x + 1

# lazy import that fails [import-runs-code; 3.15]
lazy import no_module_of_this_name

def fn(x):
    y = x + 1
    try:
        no_module_of_this_name.anything
    except ImportError as error:
        y = y * 2
    return y

# lazy import as a module's attribute [import-runs-code; 3.15]
lazy import colorsys
import sys, types
module = types.ModuleType("module_with_lazy_names")
sys.modules[module.__name__] = module
exec("lazy import colorsys", vars(module))

def fn(x):
    y = x + 1
    return y, module.colorsys.__name__

# return in finally [whole]
def inner(x):
    try:
        return x + 1
    finally:
        return x * 2

def fn(x):
    return inner(x)

# return in finally loses an exception [whole]
def inner(x):
    try:
        raise ValueError("lost")
    finally:
        return x * 2

def fn(x):
    return inner(x)

# break and continue in finally [whole]
def fn(x):
    out = []
    for i in range(4):
        try:
            if i == 1:
                {}[i]
            out.append(i)
        finally:
            if i == 1:
                continue
            if i == 2:
                break
    return x * len(out), out

# except without parentheses and without a name [whole; 3.14]
def fn(x):
    out = []
    for bad in (lambda: {}["a"], lambda: [][1], lambda: int("q")):
        try:
            bad()
        except KeyError, IndexError, ValueError:
            out.append(1)
    return x + len(out)

# annotate functions [whole; where annotations are deferred]
def scaled(value: int, factor: float = 2.0) -> str:
    return value * factor

def fn(x):
    return scaled(x), scaled.__annotate__ is not None

# annotations in a format [function-attribute; 3.14]
import annotationlib
def scaled(value: Missing) -> int:
    return value * 2

def fn(x):
    y = scaled(x)
    return y, annotationlib.get_annotations(scaled, format=annotationlib.Format.STRING)

# annotations of a class inside [unknown-instruction, unsupported-call]
def fn(x):
    class Point:
        a: Missing
        b: int = 2
    return x * Point.b

# conditional annotations [whole]
class Point:
    if len("a") == 1:
        a: int = 1
    else:
        b: str = "never"

def fn(x):
    return x + Point.a

# iteration over nothing but its index [whole]
def fn(x):
    total = 0
    for i, (a, b) in enumerate(zip([1, 2], (3, 4), strict=True)):
        total += i * a + b
    return x * total

# map that is strict [whole; 3.14]
import annotationlib
def fn(x):
    out = list(map(lambda a, b: a * b, [1, 2], [3, 4], strict=True))
    for others in ([1, 2], [], [3]):
        try:
            out.append(list(map(lambda a, b: a, [1], others, strict=True)))
        except ValueError as error:
            out.append(str(error))
    return x * out[0], out, [*map(abs, [-1], strict=True)]

# a strict map behind a break [print, unknown-object; 3.14]
import annotationlib
def fn(x):
    pairs = map(lambda a, b: a * b, [1, 2], [3], strict=True)
    print("between")
    try:
        return x, list(pairs)
    except ValueError as error:
        return x + 1, error.args

# templates as keys that exist [whole; 3.14]
one, two = t"a{1}", t"a{1}"
def fn(x, kept=(one, two, one)):
    a, b, c = kept
    table = {a: 1, b: 2}
    return x * table[c], a == b, a == c, a is c, len(table)

# templates that are the same or not from call to call [whole; 3.14]
turns = []
kept = t"a{1}"
def pair():
    turns.append(1)
    return (kept, kept if len(turns) % 2 else t"a{1}")

def fn(x):
    return same(x, *pair())

def same(x, a, b):
    return x + (1 if a == b else 2), a is b
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
