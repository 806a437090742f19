"""Random small programs over containers, numbers and strings: the interpreter and eager must agree on everything."""

from __future__ import annotations

import contextlib
import io
import linecache
from collections import OrderedDict, deque
from itertools import count
from typing import Any

from driver import Compiled, compiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import framesmith_frames as frames

_serial = count()
INDICES = st.sampled_from(["0", "1", "-1", "2", "-3", "7"])
BOUNDS = st.sampled_from(["", "0", "1", "-1", "2", "-2", "5"])
KEYS = st.sampled_from(["'p'", "'q'", "1", "True", "1.0", "None", "(1, 2)", "n", "x"])
LISTS = st.sampled_from(["a", "b", "c[0]"])

ATOMS = st.one_of(
    st.sampled_from(
        ["0", "1", "-2", "3.5", "'p'", "'zq'", "None", "True", "n", "x", "a", "b", "t", "len(a)", "len(d)", "d", "f(n)"]
    ),
    st.builds("{}[{}]".format, LISTS, INDICES),
    st.builds("d.get({})".format, KEYS),
    st.builds("d[{}]".format, KEYS),
)
SLICES = st.builds("{}:{}{}".format, BOUNDS, BOUNDS, st.sampled_from(["", ":1", ":2", ":-1", ":-2"]))
EXPRESSIONS = st.one_of(
    ATOMS,
    st.builds(
        "({} {} {})".format,
        ATOMS,
        st.sampled_from(["+", "*", "-", "==", "!=", "<", "is", "in", "and", "or", "%", "//"]),
        ATOMS,
    ),
    st.builds("[{}, {}]".format, ATOMS, ATOMS),
    st.builds("({}, {})".format, ATOMS, ATOMS),
    st.builds("{}[{}]".format, st.sampled_from(["a", "b", "t", "x"]), SLICES),
    st.builds("sorted({}, key=repr)".format, st.sampled_from(["a", "d", "s", "x", "t"])),
    st.builds(
        "{}({})".format,
        st.sampled_from(["list", "tuple", "len", "str", "repr", "bool", "type", "sum", "max", "any", "all"]),
        ATOMS,
    ),
    st.builds("[v for v in {} if v != {}]".format, LISTS, ATOMS),
    st.builds("{{k: {} for k, v in d.items()}}".format, ATOMS),
    st.builds("({} if {} else {})".format, ATOMS, ATOMS, ATOMS),
    st.builds("list(zip({}, {}))".format, LISTS, st.sampled_from(["x", "t", "d", "range(3)"])),
    st.builds("list(enumerate({}, n))".format, LISTS),
    st.builds("{}.index({})".format, LISTS, ATOMS),
    st.builds("{}.count({})".format, LISTS, ATOMS),
    st.builds("f'{{{}}}|{{{}!r:>4}}'".format, st.sampled_from(["n", "x", "len(a)"]), st.sampled_from(["n", "x"])),
    st.builds("isinstance({}, (int, list))".format, ATOMS),
    st.builds("[*{}, *{}]".format, LISTS, st.sampled_from(["t", "d", "x", "b"])),
)
SIMPLE = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(["a", "b", "n", "x", "t", "y", "c[0]"]), EXPRESSIONS),
    st.builds("{}.append({})".format, LISTS, EXPRESSIONS),
    st.builds("{}.extend({})".format, LISTS, EXPRESSIONS),
    st.builds("{}.insert({}, {})".format, LISTS, INDICES, ATOMS),
    st.builds("y = {}.pop({})".format, LISTS, INDICES),
    st.builds("{}.remove({})".format, LISTS, ATOMS),
    st.builds("{}[{}] = {}".format, LISTS, INDICES, EXPRESSIONS),
    st.builds("{}[{}] = {}".format, LISTS, SLICES, EXPRESSIONS),
    st.builds("del {}[{}]".format, LISTS, SLICES),
    st.builds("{} += {}".format, st.sampled_from(["a", "b", "n", "x", "t", "c[1]"]), EXPRESSIONS),
    st.builds("{} *= {}".format, st.sampled_from(["a", "n", "x", "t"]), st.sampled_from(["0", "2", "-1"])),
    st.sampled_from(
        [
            "a, b = b, a",
            "a.reverse()",
            "b.sort(key=repr)",
            "c.append(c)",
            "a.clear()",
            "b = a.copy()",
            "b = a",
            "n -= 1",
        ]
    ),
    st.builds("d[{}] = {}".format, KEYS, EXPRESSIONS),
    st.builds("del d[{}]".format, KEYS),
    st.builds("y = d.pop({}, {})".format, KEYS, ATOMS),
    st.builds("d.setdefault({}, []).append({})".format, KEYS, ATOMS),
    st.builds("d.update({{{}: {}}})".format, KEYS, ATOMS),
    st.sampled_from(
        [
            "d = dict(d)",
            "y = d.popitem()",
            "d |= {'z': n}",
            "o.move_to_end('u')",
            "o['w'] = n",
            "y = list(o.items())",
            "o.popitem(last=False)",
        ]
    ),
    st.builds("s.add({})".format, KEYS),
    st.builds("s.discard({})".format, KEYS),
    st.builds("y = {} in s".format, KEYS),
    st.builds("s = s {} {{1, 'p'}}".format, st.sampled_from("|&-^")),
    st.builds(
        "q.{}({})".format, st.sampled_from(["append", "appendleft", "rotate"]), st.sampled_from(["n", "2", "-1"])
    ),
    st.sampled_from(
        [
            "y = q.pop()",
            "q.extend(t)",
            "y = list(q)",
            "g = cell(n)",
            "y = g()",
            "y, *z = a",
            "(y, z), w = t, n",
            "it = iter(a)",
            "y = next(it, None)",
        ]
    ),
)


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def compound(children: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    tests = st.builds("{} {} {}".format, ATOMS, st.sampled_from(["==", "<", "in", "is not"]), ATOMS)
    return st.one_of(
        st.builds(
            lambda test, body, other: [f"if {test}:", *indented(body), "else:", *indented(other)],
            tests,
            children,
            children,
        ),
        st.builds(
            lambda items, body: [f"for v in {items}:", *indented([*body, "if len(log) > 6: break", "log.append(n)"])],
            st.sampled_from(["range(3)", "list(a)", "t", "d.copy()", "x", "a[:4]"]),
            children,
        ),
        st.builds(
            lambda body: [
                "try:",
                *indented(body),
                "except ERRORS as e:",
                "    log.append(type(e).__name__)",
                "finally:",
                "    n = 1",
            ],
            children,
        ),
        st.builds(
            lambda body: ["while n and len(log) < 3:", *indented([*body, "log.append('w')", "n = 0 if n == 1 else 1"])],
            children,
        ),
    )


def protected(lines: list[str], bare: int) -> list[str]:
    """Most statements may fail without ending the program."""
    if bare == 0:
        return lines
    return ["try:", *indented(lines), "except ERRORS as e:", "    log.append(type(e).__name__)"]


BARE = st.integers(0, 7)
BLOCKS = st.recursive(
    st.builds(protected, SIMPLE.map(lambda line: [line]), BARE),
    lambda children: st.builds(protected, compound(children), BARE),
    max_leaves=4,
)
PROGRAMS = st.lists(BLOCKS, min_size=1, max_size=8).map(lambda blocks: [line for block in blocks for line in block])
ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
HEAD = """
def fn(a, b, d, o, s, q, t, n, x):
    c, log, y, z, it, g = [a, b], [], None, None, iter(()), None

    def f(k):
        return [k, n]

    def cell(k):
        m = k

        def bump():
            nonlocal m
            m += 1
            log.append(m)
            return m

        return bump
"""
TAIL = """
    same = [a is b, c[0] is a, y is a, t is y]
    return [a, b, d, o, s, q, t, n, x, c, log, y, z, same]
"""


def build(lines: list[str]) -> Any:
    """The function `fn` of a program, with its source known to tracebacks."""
    text = HEAD + "\n".join(indented(lines)) + TAIL
    name = f"<differential {next(_serial)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"ERRORS": ERRORS}
    exec(compile(text, name, "exec"), namespace)
    return namespace["fn"]


def outcome(fn: Any, args: tuple[Any, ...]) -> str:
    """Text of a call's result or exception, and of its arguments afterwards; cyclic containers have no `==`."""
    try:
        result = fn(*args)
    except ERRORS as error:
        result = type(error), error.args
    return repr([sorted(map(repr, value)) if isinstance(value, set) else value for value in (*result, *args)])


def arguments(known: dict[str, Any]) -> tuple[Any, ...]:
    """Fresh arguments for one call."""
    a = list(known["a"])
    b = a if known["alias"] else list(known["b"])
    return a, b, dict(known["d"]), OrderedDict(u=1, v=2), set(known["s"]), deque([1, 2], 3), (1, "p"), known["n"], "px"


def compare(lines: list[str], calls: list[dict[str, Any]]) -> Compiled:
    """Run a program compiled and eagerly with each set of arguments, then with all of them again."""
    fn = build(lines)
    frames.reset()
    subject = compiled(fn)
    for known in calls * 2:
        expected = outcome(fn, arguments(known))
        assert outcome(subject, arguments(known)) == expected
    return subject


ARGUMENTS = st.fixed_dictionaries(
    {
        "a": st.lists(st.sampled_from([1, 2, "p", 3.5, None]), max_size=4),
        "b": st.lists(st.integers(-2, 3), max_size=3),
        "d": st.dictionaries(st.sampled_from(["p", "q", 1, None]), st.integers(0, 3), max_size=3),
        "n": st.integers(-1, 3),
        "s": st.sampled_from([("p", 2), (1,), ()]),
        "alias": st.sampled_from([False, False, True]),
    }
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, st.lists(ARGUMENTS, min_size=1, max_size=3))
def test_compiled_and_eager_agree(lines: list[str], calls: list[dict[str, Any]]) -> None:
    compare(lines, calls)


PRINTS = st.builds("print({})".format, st.sampled_from(["n", "a", "d", "t", "x", "'hi'", "len(c)", "y"]))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(BLOCKS, PRINTS.map(lambda line: [line])), min_size=2, max_size=7), ARGUMENTS)
def test_graph_breaks_change_nothing(blocks: list[list[str]], call: dict[str, Any]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        compare([line for block in blocks for line in block], [call])
    runs = printed.getvalue()
    half = len(runs) // 2  # eager and compiled alternate over the two calls, which print the same
    assert runs[:half] == runs[half:] and runs[: half // 2] == runs[half // 2 : half]
