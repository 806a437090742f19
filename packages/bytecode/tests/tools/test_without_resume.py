"""Profilers, `sys.monitoring` and debuggers beside code whose RESUME is missing or comes last; a crash is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import framesmith_bytecode
from framesmith_bytecode import Analyses, Instr, decode, encode, make_continuation

WATCHED = """
import sys
from types import FunctionType
from framesmith_bytecode import Analyses, Codegen, Instr, decode, encode, split

def plain(f):
    return f()

def generator(f):
    yield f()

def fails():
    return 1 / 0

def without_resume(function):
    bytecode = decode(function.__code__)
    bytecode.instructions = [i for i in bytecode.instructions if not isinstance(i, Instr) or i.op != "RESUME"]
    return FunctionType(encode(bytecode), {})

seen = []
functions = [
    without_resume(plain),
    lambda f: list(without_resume(generator)(f)),
    FunctionType(split(decode(plain.__code__), 0).prefix, {}),
]
def watch(function):
    try:
        function(fails)
    except ZeroDivisionError:
        seen.append(True)

def profiled(function):
    sys.setprofile(lambda *event: None)
    watch(function)
    sys.setprofile(None)

def monitored(function):
    tools = sys.monitoring
    tools.use_tool_id(3, "test")
    tools.register_callback(3, tools.events.PY_UNWIND, lambda *event: None)
    tools.set_events(3, tools.events.PY_UNWIND)
    watch(function)
    tools.free_tool_id(3)

watchers = [profiled, monitored] if hasattr(sys, "monitoring") else [profiled]
for watcher in watchers:
    for function in functions:
        watcher(function)
assert len(seen) == 3 * len(watchers)
"""
JUMPS = """
import sys
from types import FunctionType
from framesmith_bytecode import Analyses, decode, split, why_no_continuation

def jumps(n):
    a = 1
    x = [i for i in range(n)]
    return x

first = jumps.__code__.co_firstlineno

def trace(frame, event, argument):
    if event == "line" and frame.f_code.co_name.startswith("jumps") and frame.f_lineno == first + 3 and not done:
        done.append(True)
        try:
            frame.f_lineno = first + 1
        except ValueError:
            pass
    return trace

known = Analyses(decode(jumps.__code__))
indices = [i for i, depth in enumerate(known.stack_states.before) if depth is not None]
for index in indices:
    if why_no_continuation(known, index, own_cells=True) is None:
        done = []
        halved = FunctionType(split(known, index).prefix, {"range": range})
        sys.settrace(trace)
        try:
            halved(3)
        except Exception:  # the jump unbinds variables
            pass
        sys.settrace(None)
        assert done
"""


@pytest.mark.parametrize("program", [WATCHED, JUMPS], ids=["watched", "jumps"])
def test_tools_do_not_crash(program, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(program)
    source = Path(framesmith_bytecode.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", path],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert done.returncode == 0, done.stderr


def loops(n):
    for i in range(n):
        n += i
    return n


def test_no_line_leads_to_the_start_of_a_continuation():
    known = Analyses(decode(loops.__code__))
    index = next(i for i, item in enumerate(known.bytecode.instructions) if getattr(item, "op", "") == "FOR_ITER")
    code = make_continuation(known, index).bytecode
    lines = [(item.op, item.position) for item in code.instructions if isinstance(item, Instr)]
    at = [op for op, _ in lines].index("NOP")
    assert at > 0
    assert {position for _, position in lines[:at]} == {None}
    assert lines[at][1] is not None
    assert lines[at + 1][0] == "RESUME"


def test_code_that_resumes_first_stays_as_it_is():
    for function in (loops, test_no_line_leads_to_the_start_of_a_continuation):
        assert encode(decode(function.__code__)).co_code == function.__code__.co_code
