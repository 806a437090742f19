"""Deep recursion: the hook neither lowers the depth a program can reach nor overflows the C stack."""

import subprocess
import sys
import threading

import pytest

import framesmith_frames as frames


def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)


def deep(n):
    return 0 if n == 0 else 1 + depth(n - 1)


def endless(n):
    return endless(n + 1)


def test_python_recursion_to_the_limit(replacing):
    """On 3.12 the budget of C recursion is smaller than the default limit of Python recursion."""
    limit = sys.getrecursionlimit() - 200
    for callback in (replacing({}), replacing({depth: deep})):
        frames.reset()
        with frames.activated(callback):
            assert depth(limit) == limit


def test_endless_recursion_is_a_recursion_error(replacing):
    def worse(n):
        return endless(n + 1)

    for callback in (replacing({}), replacing({endless: worse})):
        frames.reset()
        with frames.activated(callback):
            with pytest.raises(RecursionError):
                endless(0)
            assert depth(10) == 10


@pytest.mark.usefixtures("either_way")
def test_endless_recursion_of_entries_run_as_functions(replacing):
    def worse(n):
        return endless(n + 1)

    with frames.activated(replacing({endless: worse})):
        for _ in range(3):
            with pytest.raises(RecursionError):
                endless(0)
    assert depth(10) == 10


DEEP_PROGRAM = """
import sys, threading
import framesmith_frames as frames

def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)

def deep(n):
    return 0 if n == 0 else 1 + depth(n - 1)

def callback(frame):
    if frame.code is depth.__code__:
        return frames.Entry(lambda args, function: True, deep.__code__)
    return frames.SKIP("other")

sys.setrecursionlimit(10**6)
replace = {replace}

def work():
    frames.set_callback(callback if replace else lambda frame: frames.SKIP("all"))
    for _ in range(2):
        assert depth(50_000) == 50_000
        assert depth(10) == 10
    assert frames.hook_state() == dict(linked=True, on_top=True, active_threads=1, suspended=0)
    if replace:
        assert frames.stats(depth).hits > 1000
    frames.set_callback(None)

if {threaded}:
    threading.stack_size(512 * 1024)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
assert frames.hook_state() == dict(linked=False, on_top=False, active_threads=0, suspended=0)
print("deep enough")
"""


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_recursion_far_deeper_than_the_c_stack(threaded, replace):
    """CPython keeps Python-to-Python calls on its heap; a hook puts them on the C stack, up to half of it."""
    program = DEEP_PROGRAM.format(replace=replace, threaded=threaded)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "deep enough\n"), done.stderr


def test_another_thread_works_while_one_is_deep(replacing):
    """At the depth where the hook is off, other threads still get right results."""
    started, finish = threading.Event(), threading.Event()
    results = []

    def wait(n):
        if n == 0:
            started.set()
            finish.wait()
            return 0
        return 1 + wait(n - 1)

    def sink():
        with frames.activated(replacing({})):
            results.append(wait(700))

    threading.stack_size(128 * 1024)
    try:
        thread = threading.Thread(target=sink)
        thread.start()
    finally:
        threading.stack_size(0)
    started.wait()
    with frames.activated(replacing({depth: deep})):
        results.append(depth(20))
    results.append(depth(20))
    finish.set()
    thread.join()
    assert results == [20, 20, 700]
