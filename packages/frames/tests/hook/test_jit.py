"""Under CPython's experimental JIT: the machine code of a loop belongs to the code that runs in the frame."""

import os
import subprocess
import sys

import pytest

JIT = getattr(sys, "_jit", None)

pytestmark = pytest.mark.skipif(JIT is None or not JIT.is_available(), reason="needs a build with the JIT")

PRELUDE = """
import _opcode, sys
import framesmith_frames as frames
from framesmith_frames import _hook

assert sys._jit.is_enabled()
other = 5

def compiled_loops(function):
    found = 0
    for offset in range(0, len(function.__code__.co_code), 2):
        try:
            found += _opcode.get_executor(function.__code__, offset) is not None
        except ValueError:
            pass
    return found

def helper(i, k):
    return i * k + 7

def original(n, off):
    return None

def replacement(n, off):  # more constants, names, locals and stack than the original
    a, b, c, d, e, f, g, h = 11, 13, 17, 19, 23, 29, 31, 37
    total = 0
    if off:
        frames.set_callback(None)
    for i in range(n):
        total += helper(i, 3) * a + other
        total ^= 123456
        if total > 1000000:
            total -= 999983
        b, c, d, e, f, g, h = c, d, e, f, g, h, b
        total += h + b
    return [total, a, b, [c, d, [e, [f, [g, [h]]]]]]

def callback(frame):
    if frame.code is original.__code__:
        return frames.Entry(lambda args, function: True, replacement.__code__)
    return frames.SKIP("other")
"""

PROGRAMS = {
    "a loop of an entry, with the hook on and off": """
expected = replacement(0, False), replacement(20_000, False)
replacement.__code__ = replacement.__code__.replace(co_firstlineno=1)
for off in [False, True] * 3:
    frames.set_callback(callback)
    results = original(0, off)
    frames.set_callback(callback)
    results = results, original(20_000, off)
    frames.set_callback(None)
    assert results == expected, (off, results, expected)
assert compiled_loops(replacement) > 0
""",
    "an entry run as a function": """
_hook.never_in_place(True)
expected = replacement(20_000, False)
for off in [False, True] * 3:
    frames.set_callback(callback)
    assert original(20_000, off) == expected
    frames.set_callback(None)
""",
    "the hook goes on and off inside a compiled loop": """
def one(x):
    return 1

def two(x):
    return 2

def switch(frame):
    return frames.Entry(lambda *_: True, two.__code__) if frame.code is one.__code__ else frames.SKIP("other")

def loop(n, switches):
    total = 0
    for i in range(n):
        if i in switches:
            frames.set_callback(switches[i])
        total += one(i)
    return total

assert loop(20_000, {}) == 20_000
assert compiled_loops(loop) > 0
for _ in range(3):
    assert loop(20_000, {5_000: switch, 15_000: None}) == 30_000
    assert loop(20_000, {}) == 20_000
""",
    "many short calls": """
def tiny(x):
    return x

def tinier(x):
    total = x
    for i in range(3):
        total += i * 1000
    return total

def short(frame):
    return frames.Entry(lambda *_: True, tinier.__code__) if frame.code is tiny.__code__ else frames.SKIP("other")

frames.set_callback(short)
assert {tiny(i) - i for i in range(30_000)} == {3_000}
frames.set_callback(None)
assert {tiny(i) - i for i in range(30_000)} == {0}
""",
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_results_under_the_jit(name):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + PROGRAMS[name] + "\nprint('done')"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHON_JIT": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
