"""Entries of machine code: what they are made of lives as long as they do, in whatever order garbage is cleared."""

import subprocess
import sys

import pytest

# Two launchers of one module die in one collection. What is cleared in it allocates, so that memory that was freed too
# early is used again: behind a constant of a code object the collector does not see it.
DYING = """
import gc
from framesmith_backends.launch.llvm.engine import begin_module

gc.disable()
TEXT = "define ptr @f(ptr %self, ptr %args, i64 %n) {\\n  ret ptr %self\\n}\\n"
kept = []

class Dies:
    def __del__(self):
        kept.extend(float.fromhex("0x1.fffffffffffffp+0") for _ in range(3000))

def hidden(value):
    return (lambda: 0).__code__.replace(co_consts=(value,))

def launcher(extra):
    space = {"z": extra, **begin_module(TEXT, ["f"]).result()}
    exec("def call(a): return f(a)", space)
    return space["call"]

for _ in range(30):
    names = ["name_of_something_long_%07d" % k for k in range(5000)]
    del names[::2]
    launcher(None), launcher(hidden(Dies()))
    gc.collect()
    kept.clear()
print("done")
"""


@pytest.mark.nightly
def test_launchers_of_one_module_die_together():
    command = [sys.executable, "-X", "faulthandler", "-c", DYING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]
