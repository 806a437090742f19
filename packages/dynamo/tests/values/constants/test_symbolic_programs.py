"""Random small programs over symbolic sizes and numbers: compiled once for many, they agree with eager at each."""

from __future__ import annotations

import linecache
import os
from itertools import count
from typing import Any

import torch
from driver import Compiled, compiled, same
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import framesmith_frames as frames

PROGRAMS = 20_000 if os.environ.get("FRAMESMITH_LONG") else 60
_serial = count()

INTEGERS = st.recursive(
    st.sampled_from(
        ["x.shape[0]", "x.size(1)", "k", "len(x)", "x.numel()", "y.shape[-1]", "len(a)", "2", "3", "-1", "0"]
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "&", "|"]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "torch.sym_max"]), inner, inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "-", "int", "round", "math.floor"]), inner),
        st.builds("({} if {} > {} else {})".format, inner, inner, inner, inner),
        st.builds("int({} / {})".format, inner, inner),
    ),
    max_leaves=4,
)
FLOATS = st.recursive(
    st.one_of(
        st.sampled_from(["f", "0.5", "-1.5", "float(k)", "x.shape[0] / 3"]), st.builds("({} * 0.25)".format, INTEGERS)
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
        st.builds("math.{}({})".format, st.sampled_from(["sin", "exp", "floor", "sqrt"]), inner),
        st.builds("({} ** 2)".format, inner),
    ),
    max_leaves=3,
)
NUMBERS = st.one_of(INTEGERS, FLOATS)
CONDITIONS = st.one_of(
    st.builds("{} {} {}".format, NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), NUMBERS),
    st.builds("{} in (1, 3, 6)".format, INTEGERS),
    st.builds("{} and {}".format, INTEGERS, NUMBERS),
    st.builds("not {}".format, NUMBERS),
)
TENSORS = st.one_of(
    st.builds("x {} {}".format, st.sampled_from(["+", "*", "-", "/"]), NUMBERS),
    st.builds("x[{}:]".format, INTEGERS),
    st.builds("x[:, :{}]".format, INTEGERS),
    st.builds("x[{}]".format, INTEGERS),
    st.builds("x.reshape({}, -1)".format, INTEGERS),
    st.builds("torch.full(({}, 2), {})".format, INTEGERS, NUMBERS),
    st.builds("torch.arange({}, {})".format, INTEGERS, INTEGERS),
    st.builds("torch.cat([x, x[:{}]])".format, INTEGERS),
    st.builds("x.expand({}, -1, -1)".format, INTEGERS),
    st.builds("x.sum({}) * {}".format, st.sampled_from(["0", "1", "()"]), NUMBERS),
    st.builds("x.clamp(max={})".format, NUMBERS),
    st.builds("x.split({})[0]".format, INTEGERS),
    st.builds("torch.nn.functional.pad(x, (0, {}))".format, INTEGERS),
    st.just("(x.unsqueeze(0) + y.unsqueeze(1))"),
    st.just("x.softmax(-1)"),
    st.just("x.t().contiguous().view(-1)"),
)
STATEMENTS = st.one_of(
    st.builds("a.append({})".format, st.one_of(NUMBERS, TENSORS)),
    st.builds("k = {}".format, INTEGERS),
    st.builds("f = {}".format, FLOATS),
    st.builds("if {}:\n        a.append({})".format, CONDITIONS, st.one_of(NUMBERS, TENSORS)),
    st.builds("if {}:\n        return {}".format, CONDITIONS, TENSORS),
    st.builds("for i in range({} % 4):\n        a.append(i * {})".format, INTEGERS, NUMBERS),
    st.builds("d[{}] = {}".format, INTEGERS, NUMBERS),
    st.builds("a.append(f'{{{}}}')".format, INTEGERS),
    st.builds("a.append([i * 2 for i in range({} % 5)])".format, INTEGERS),
    st.builds("assert {}".format, CONDITIONS),
    st.builds("print({}, end='')".format, INTEGERS),
)
BODIES = st.lists(STATEMENTS, min_size=1, max_size=5)
#: Rows, columns, an integer and a float at each call.
CALLS = (
    (4, 3, 2, 0.5),
    (6, 3, 5, 1.25),
    (5, 7, 5, -2.0),
    (1, 3, 0, 0.0),
    (0, 4, 1, 3.0),
    (9, 8, -3, 1e6),
    (6, 3, 5, 1.25),
)


def program(body: list[str]) -> Any:
    """Return a function with this body, whose lines tracebacks can show."""
    lines = [
        "def program(x, y, k, f):",
        "    a, d = [], {}",
        *(f"    {line}" for line in body),
        "    return a, d, k, f",
    ]
    text = "\n".join(lines) + "\n"
    name = f"<program {next(_serial)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"torch": torch, "math": __import__("math")}
    exec(compile(text, name, "exec"), space)
    return space["program"]


def outcome(fn: Any, rows: int, columns: int, k: int, f: float) -> Any:
    """Return the result or exception of a call."""
    x = torch.arange(float(rows * columns)).reshape(rows, columns) - 3
    try:
        return fn(x, torch.ones(2, columns), k, f)
    except Exception as error:
        return type(error), str(error).splitlines()[:1]


@example(
    body=["a.append(x.expand(-(y.shape[-1]), -1, -1))"], dynamic=True
)  # without rows, eager mode's size is negative
@example(body=["a.append(f'{abs(x.shape[0]) + round(x.shape[0])}')"], dynamic=None)
@example(body=["f = math.exp(f)", "f = 0.5"], dynamic=None)  # its result is unused; it raises all the same
@example(body=["for i in range(len(x) % 4):\n        a.append(i * f)", "a.append(f ** 2)"], dynamic=None)
@given(body=BODIES, dynamic=st.sampled_from([None, True]))
@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=list(HealthCheck), derandomize=PROGRAMS <= 200)
def test_programs_agree_at_all_sizes(body: list[str], dynamic: bool | None) -> None:
    function = program(body)
    subject: Compiled = compiled(function, recompile_limit=30, dynamic=dynamic, strict=True)
    try:
        for call in CALLS:
            found, expected = outcome(subject, *call), outcome(function, *call)
            assert same(found, expected), f"{call}: compiled {found}, eager {expected}"
    finally:
        frames.reset(function.__code__)
