"""Threads: each has its own callback; caches are shared; resets, compiles and exits may happen at any moment."""

import random
import sys
import threading
import time

import pytest

import framesmith_frames as frames


def run_threads(*bodies):
    errors = []

    def guarded(body):
        try:
            body()
        except BaseException as error:
            errors.append(error)
        finally:
            frames.set_callback(None)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.fixture
def switching_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def target(x):
    return x


def doubled(x):
    return x * 2


def test_a_callback_is_one_threads_own(replacing):
    results = {}
    barrier = threading.Barrier(2)

    def active():
        with frames.activated(replacing({target: doubled})):
            barrier.wait()
            results["active"] = [target(i) for i in range(100)]
            barrier.wait()

    def passive():
        barrier.wait()
        results["passive"] = [target(i) for i in range(100)]
        barrier.wait()

    run_threads(active, passive)
    assert results == {"active": [2 * i for i in range(100)], "passive": list(range(100))}


def test_a_thread_that_ends_without_switching_off(replacing):
    callback = replacing({target: doubled})
    references = sys.getrefcount(callback)

    def leaves():
        frames.set_callback(callback)
        assert target(4) == 8

    thread = threading.Thread(target=leaves)
    thread.start()
    thread.join()
    assert frames.hook_state()["active_threads"] == 0
    assert sys.getrefcount(callback) == references


def test_many_short_threads(replacing):
    callback = replacing({target: doubled})

    def body():
        frames.set_callback(callback)
        assert target(1) == 2

    for _ in range(50):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    assert target(1) == 1


def make_callback(kinds):
    """Compiles one entry for each type of argument, slowly enough for other threads to interleave."""

    def callback(frame):
        if frame.code is not target.__code__:
            return frames.SKIP("other")
        time.sleep(0)
        kind = type(frame.arguments[0])
        return frames.Entry(lambda args, function: type(args[0]) is kind, kinds[kind].__code__)

    return callback


def test_compile_call_and_reset_at_once(switching_often):
    """Results are right while another thread resets; an active thread never gets the eager result."""
    kinds = {
        int: lambda x: ("int", x),
        str: lambda x: ("str", x),
        float: lambda x: ("float", x),
        tuple: lambda x: ("tuple", x),
    }
    values = [1, "a", 2.0, (3,)]
    stop = time.monotonic() + 2.0
    calls = [0]

    def body(seed):
        chosen = random.Random(seed)
        callback = make_callback(kinds)

        def work():
            frames.set_callback(callback)
            while time.monotonic() < stop:
                for _ in range(20):
                    value = chosen.choice(values)
                    assert target(value) == (type(value).__name__, value)
                    calls[0] += 1
                if chosen.random() < 0.1:
                    frames.reset() if chosen.random() < 0.5 else frames.reset(target)
                if chosen.random() < 0.1:
                    frames.entries(target)
                    frames.stats(target)

        return work

    run_threads(*(body(seed) for seed in range(8)))
    assert calls[0] > 1000


def test_compiled_functions_under_reset(switching_often):
    kinds = {int: lambda x: ("int", x), str: lambda x: ("str", x)}
    stop = time.monotonic() + 1.0
    shared = frames.CompiledFunction(target, make_callback(kinds))

    def caller():
        while time.monotonic() < stop:
            assert shared(1) == ("int", 1)
            assert shared(x="a") == ("str", "a")

    def resetter():
        while time.monotonic() < stop:
            frames.reset()
            time.sleep(0)

    run_threads(caller, caller, caller, resetter)


def test_dropping_the_code_another_thread_runs():
    """The entry, its code and the original code are dropped while a thread runs them."""
    inside, leave = threading.Event(), threading.Event()
    namespace = {"inside": inside, "leave": leave}
    exec(
        "def f(x):\n    return None\ndef g(x):\n    inside.set(); leave.wait(); return [x, x, inside]",
        namespace,
    )
    results = []

    def callback(frame):
        if frame.code.co_name == "f":
            return frames.Entry(lambda args, function: True, frame.globals["g"].__code__)
        return frames.SKIP("other")

    def work():
        frames.set_callback(callback)
        results.append(namespace.pop("f")(7))

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    frames.reset()
    namespace.pop("g")
    leave.set()
    thread.join()
    assert results == [[7, 7, inside]]
