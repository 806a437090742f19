"""Programs with the newer forms of f-strings, and with t-strings: compiled and in eager mode."""

from __future__ import annotations

import pytest
from language_programs import check_program, titled

PROGRAMS = """
# the same quotes inside [3.12]
def fn(x):
    d = {"a": 1}
    y = x + d["a"]
    print(f"{d["a"]} and {", ".join(d)}")
    return y, f"{d["a"]:>4}"

# nested fields [3.12]
def fn(x):
    n, width = 3, 5
    y = x * n
    print(f"{n:{width}}|{f"{n}{f"{width}"}"}")
    return y, f"{n!r:>{width}}"

# lines and comments inside [3.12]
def fn(x):
    y = x + 1
    text = f"{
        len(y.shape)  # the rank
    }"
    print(text)
    return y, f"{text!s}{'\\n'}"

# a break inside a field
def fn(x):
    y = x + 1
    text = f"a{print('field') or 2}b{y.shape[0]}"
    return y * 2, text

# self-documenting
def fn(x):
    n = 3
    y = x + n
    print(f"{n=} {n = !s:>3}")
    return y, f"{n + 1=}"

# template [3.14]
def fn(x):
    n = 3
    y = x + n
    made = t"n is {n}!"
    print("made")
    return y, made.strings, made.values, made.interpolations[0].expression

# template with conversions and formats [3.14]
def fn(x):
    n, width = "ab", 6
    y = x + len(n)
    made = t"{n!r}{n!s:>{width}}{n:^{width}}"
    print(len(made.interpolations))
    return y, [(i.value, i.expression, i.conversion, i.format_spec) for i in made.interpolations]

# template of a tensor [3.14]
def fn(x):
    y = x + 1
    made = t"sum {y.sum()} of {y}"
    print("between")
    total, whole = made.values
    return total * whole

# template that is walked [3.14]
def fn(x):
    y = x + 1
    made = t"{1}{y}two{3}"
    out = []
    for part in made:
        if isinstance(part, str):
            out.append(part)
        else:
            out.append(part.value)
    print(len(out))
    return out

# template rendered by a function [3.14]
def render(template):
    from string.templatelib import Interpolation
    parts = []
    for part in template:
        match part:
            case str() as text:
                parts.append(text)
            case Interpolation(value, _, conversion, spec):
                if conversion == "r":
                    value = repr(value)
                parts.append(format(value, spec))
    return "".join(parts)

def fn(x):
    name = "tensor"
    y = x * 2
    print(render(t"<{name!r:>10}> of {len(y)}"))
    return y + 1, render(t"{name}")

# template across a break [3.14]
def fn(x):
    y = x + 1
    made = t"{y}{print('inside')}{y * 2}"
    return made.values[0] + made.values[2], made.values[1]

# template that is returned twice [3.14]
def fn(x):
    y = x + 1
    made = t"a{y}"
    pair = (made, made)
    print("pair")
    return pair[0] is pair[1], pair[0].interpolations is pair[1].interpolations, made.values[0] * 2

# template that is kept [3.14]
kept = []
def fn(x):
    y = x + 1
    kept.append(t"a{y.shape[0]}b")
    print(len(kept))
    return [k.strings for k in kept], kept[-1].values, y

# template as an argument [3.14]
def fn(x):
    made = t"a{x}b"
    return inner(made) + 1

def inner(template):
    y = template.values[0] * 2
    print(template.strings)
    return y

# raw template, and a sum of templates [3.14]
def fn(x):
    y = x + 1
    made = t"a{1}" + rt"\\d{2}"
    print(made.strings)
    return y, made.values

# empty template [3.14]
def fn(x):
    made = t""
    print(made.strings, made.values)
    return x + len(made.strings)

# template whose field raises [3.14]
def fn(x):
    y = x + 1
    try:
        made = t"{y}{[][1]}"
    except IndexError as error:
        print(error)
        return y * 2
    return made

# attribute that a template has not [3.14]
def fn(x):
    y = x + 1
    try:
        t"a{1}".nothing
    except AttributeError as error:
        print(error)
        return y * 3
"""


@pytest.mark.parametrize("text", titled(PROGRAMS))
def test_program(text: str) -> None:
    check_program(text)
