"""Compiling and forgetting, again and again, keeps nothing. Each program has a process, and so memory, of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration_tests.harness.sweeps import LONG

#: The most that a cycle may leave behind, in bytes.
ALLOWED = 1024
#: Parts of the cycles, each measured. What is kept is kept in every part; a table of Python's or torch's that is made
#: again, tens of kilobytes at once, falls into one of them. That one, whichever it is, does not count.
PARTS = 5

#: `cycle(index)` is measured: bytes taken from malloc and Python's small blocks, without the part that took most of
#: them, and the pages of the process, over all parts. Threads that make machine code are waited for: they hold it.
MEASURE = """
import ctypes, gc, itertools, sys, threading

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo

def in_use():
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
    gc.collect()
    info = libc.mallinfo2()
    pages = int(open("/proc/self/statm").read().split()[1]) * 4096
    return info.uordblks + info.hblkhd, sys.getallocatedblocks(), pages

def run(cycles):
    for index in cycles:
        cycle(index)
        if index % 50 == 0:  # classes die in cycles; how much garbage Python lets gather is not the question
            gc.collect()

def measure(warm_up, cycles):
    run(range(warm_up))
    part = cycles // PARTS
    seen = [in_use()]
    for begin in range(warm_up, warm_up + cycles, part):
        run(range(begin, begin + part))
        seen.append(in_use())
    *counted, pages = [[b - a for a, b in itertools.pairwise(each)] for each in zip(*seen)]
    print(*[(sum(each) - max(each)) / (cycles - part) for each in counted], sum(pages) / cycles)
"""

RESETS = """
import torch, framesmith

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
data = torch.randn(2, 8)

def cycle(index):
    framesmith.reset()
    framesmith.compile(model)(data).sum().backward()
"""

RECOMPILATIONS = """
import torch, framesmith

def scaled(x, factor):
    print("", end="")
    return x * factor

compiled = framesmith.compile(scaled, backend="eager", recompile_limit=8)
data = torch.randn(2, 8)

def cycle(index):
    if index % 7 == 0:
        framesmith.reset()
    factor = index % DISTINCT
    assert torch.equal(compiled(data, factor), data * factor)
"""

WITH_FOREIGN_FRAMES = """
import json, torch, framesmith

def report(x):
    y = x * 2
    text = json.dumps({"a": [1, 2.5, None]}, indent=1)
    return y + len(json.loads(text))

data = torch.randn(2, 8)

def cycle(index):
    framesmith.reset()
    framesmith.compile(report, backend="eager")(data)
"""

SCRATCH = """
import torch, framesmith

def attend(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.125).softmax(-1) @ v

data = [torch.randn(2, 2, 256, 64) for _ in range(3)]

def cycle(index):
    framesmith.reset()
    framesmith.compile(attend)(*data)
"""

#: name -> (program, (warm-up, cycles), the same when LONG: until arenas have settled, caches are full and
#: Python's table of interned strings, 2 MB, has been made again once for the names that come and go)
PROGRAMS = {
    "compile and reset": (RESETS, (30, 60), (1200, 1000)),
    "attention's scratch memory": (SCRATCH, (30, 60), (1200, 1000)),
    "recompilations under a limit": (RECOMPILATIONS, (70, 140), (5000, 10_000)),
    "foreign frames and reset": (WITH_FOREIGN_FRAMES, (30, 60), (1200, 1000)),
}


@pytest.mark.sampled(60)
@pytest.mark.skipif(sys.platform != "linux", reason="reads glibc's account of memory")
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_compiling_keeps_nothing(name: str) -> None:
    program, short, long = PROGRAMS[name]
    warm_up, cycles = long if LONG else short
    constants = f"DISTINCT, PARTS = {10**6 if LONG else 64}, {PARTS}"
    source = f"{constants}\n{MEASURE}\n{program}\nmeasure({warm_up}, {cycles})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, blocks, pages = map(float, done.stdout.split())
    assert taken < ALLOWED, f"{taken:.0f} bytes of malloc's a cycle"
    assert blocks < ALLOWED / 64, f"{blocks:.1f} of Python's blocks a cycle"
    assert not LONG or pages < ALLOWED, f"{pages:.0f} bytes of memory a cycle"
