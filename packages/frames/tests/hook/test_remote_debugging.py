"""Remote debuggers and profilers: their scripts run as a part of the program, and they read replaced frames."""

import subprocess
import sys

import pytest

PRELUDE = """
import os, sys
import framesmith_frames as frames

def original(x):
    return x

def replacement(x):
    if x is None:
        return unwinder(os.getpid()).get_stack_trace()
    return -x

def callback(frame):
    if frame.code is original.__code__:
        return frames.Entry(lambda args, function: True, replacement.__code__)
    return frames.SKIP("other")
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments], capture_output=True, text=True, timeout=60
    )
    if "PermissionError" in done.stderr:
        pytest.skip("needs the permission to read another process")
    return done


@pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="sys.remote_exec came with 3.14")
def test_a_script_of_a_debugger(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import __main__\ndef inside(x): return x\n__main__.seen.append((__main__.original(7), inside(7)))\n"
    )
    program = """
seen = []
frames.set_callback(callback)
sys.remote_exec(os.getpid(), sys.argv[1])
results = set()
for i in range(1_000_000):
    results.add(original(1))
    if seen:
        break
frames.set_callback(None)
print(seen, results)
"""
    done = run(program, str(script))
    assert (done.returncode, done.stdout) == (0, "[(-7, 7)] {-1}\n"), done.stderr


def test_a_profiler_reads_a_replaced_frame():
    """The frame itself: CPython 3.14's reader stops at the last call from C, and with a hook each call is one."""
    pytest.importorskip("_remote_debugging", reason="it came with 3.14")
    program = """
from _remote_debugging import RemoteUnwinder as unwinder
frames.set_callback(callback)
trace = repr(original(None))
frames.set_callback(None)
print("'replacement'" in trace, "'original'" in trace)
"""
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr
