"""Programs with f-strings and t-strings in all their forms: results, and where graphs end."""

from __future__ import annotations

import pytest
from language_programs import check_program_and_end, titled_with_end

PROGRAMS = r"""
# the same quotes inside [whole; 3.12]
def fn(x):
    d = {"a": 1}
    return x + d["a"], f"{d["a"]} and {", ".join(d)}"

# shape in a field [whole]
def fn(x):
    return x * 2, f"{x.shape[0]} of {len(x.shape)}: {tuple(x.shape)}"

# width from a shape [whole]
def fn(x):
    n = x.shape[0]
    return x + n, f"{n:{n}}|{n:>{n + 2}}|{n:0{n}d}"

# nested four deep [whole; 3.12]
def fn(x):
    n = 3
    return x * n, f"{f"{f"{f"{n}"}"}"}"

# lines and comments [whole; 3.12]
def fn(x):
    return x + 1, f"{
        x.dim()  # the rank
    :>{
        2 + 1
    }}"

# backslashes [whole; 3.12]
def fn(x):
    names = ["a", "b"]
    return x + 1, f"{'\n'.join(names)}\t{'\\'}"

# conversions [whole]
def fn(x):
    text = "ä"
    return x + 1, f"{text!r} {text!s} {text!a} {text!r:>6}"

# self-documenting [whole]
def fn(x):
    n = x.shape[0]
    return x + n, f"{n=} {n = } {n + 1=} {n=!s} {n=:>4} {'a'=}"

# braces [whole]
def fn(x):
    n = 2
    return x + n, f"{{{n}}} {{}} {{{{{n}}}}}"

# lambda and conditional in a field [whole]
def fn(x):
    n = 2
    return x + n, f"{(lambda a: a * 2)(n)} {'yes' if n > 1 else 'no'} {n if n else 0:>3}"

# walrus in a field [whole]
def fn(x):
    text = f"{(n := x.shape[0] + 1)}"
    return x + n, text

# comprehension in a field [whole]
def fn(x):
    return x + 1, f"{[i * x.shape[0] for i in range(3)]} {sum(i for i in range(3))}"

# dtype and device [whole]
def fn(x):
    return x + 1, f"{x.dtype} {x.device} {x.dtype!r:>20}"

# format of an object of the program [whole]
class Money:
    def __init__(self, n):
        self.n = n
    def __format__(self, spec):
        return f"<{self.n}:{spec}>"
    def __repr__(self):
        return f"Money({self.n})"

def fn(x):
    m = Money(x.shape[0])
    return x * m.n, f"{m} {m:abc} {m!r} {m=}"

# format that fails [whole]
def fn(x):
    out = []
    for spec in ("d", "q", "s"):
        try:
            out.append(f"{'text':{spec}}")
        except ValueError as error:
            out.append(str(error))
    return x + 1, out

# floats and big numbers [whole]
def fn(x):
    a, b = 1234567.891, 10**20
    return x * 2, f"{a:,.2f} {a:e} {b:_} {b:x} {-a:+.1f} {True:d} {0.5:%}"

# concatenated literals [whole]
def fn(x):
    n = 1
    return x + n, f"{n}" "plain" f"{n + 1}" rf"\{n}" Rf"{n}\n"

# value of a tensor [tensor-data-to-python]
def fn(x):
    y = x + 1
    text = f"{y.sum()}"
    return y * 2, text

# a call with effects in a field [whole]
LOG = []
def note(n):
    LOG.append(n)
    return n * 2

def fn(x):
    text = f"{note(1)} {note(2):>{note(3)}}"
    return x + len(LOG), text, list(LOG)

# format, str.format and % [whole]
def fn(x):
    n = x.shape[0]
    new = "{:>{}}".format(n, 4), "{0[1]} {a.real}".format([1, 2], a=n), format(n, "03d")
    return x + n, new, "%5d|%-3s|%r" % (n, "b", "c")

# template of constants [whole; 3.14]
def fn(x):
    n = 3
    made = t"n is {n}!"
    return x + n, made.strings, made.values, made.interpolations[0].expression

# template of a tensor [whole; 3.14]
def fn(x):
    y = x + 1
    made = t"sum {y.sum()} of {y}"
    total, whole = made.values
    return total * whole, made.interpolations[1].expression

# template rendered [whole; 3.14]
def render(template):
    from string.templatelib import Interpolation
    parts = []
    for part in template:
        match part:
            case str() as text:
                parts.append(text)
            case Interpolation(value, _, conversion, spec):
                value = repr(value) if conversion == "r" else value
                parts.append(format(value, spec))
    return "".join(parts)

def fn(x):
    name = "tensor"
    return x * 2, render(t"<{name!r:>10}> of {len(x)}"), render(t"")

# template as an argument across a break [print; 3.14]
def inner(template):
    y = template.values[0] * 2
    return y, template.strings, template.interpolations[1].value

def fn(x):
    made = t"a{x}b{x.shape[0]}"
    print("between")
    return inner(made)

# template outside [whole; 3.14]
kept = t"a{1 + 1}b{'x':>4}"
def fn(x):
    first, second = kept.interpolations
    return x + first.value, kept.strings, second.format_spec, kept.values, [type(part).__name__ for part in kept]

# templates that change from call to call [whole; 3.14]
numbers = []
def made(x):
    numbers.append(1)
    n = len(numbers)
    return t"{x}{n}" if n % 2 else t"{n}-{x}"

def use(template):
    total = 0
    for value in template.values:
        total = total + value
    return total, template.strings

def fn(x):
    return use(made(x))

# sum of templates [whole; 3.14]
def fn(x):
    made = t"a{x}b" + t"c{2}"
    both = made + made
    return both.values[0] + both.values[3], both.strings, made.strings, both != made, made == made

# sum of a template and a string [break-in-block, text-of-object, unsupported-operation; 3.14]
def fn(x):
    y = x + 1
    try:
        t"a{x}" + "b"
    except TypeError as error:
        return y, str(error)

# templates as keys [whole; 3.14]
def fn(x):
    made = t"{x}"
    table = {made: 1}
    return x + table[made], made in table, t"{x}" in table
"""


@pytest.mark.parametrize(("text", "end"), titled_with_end(PROGRAMS))
def test_program(text: str, end: frozenset[str] | None) -> None:
    check_program_and_end(text, end)
