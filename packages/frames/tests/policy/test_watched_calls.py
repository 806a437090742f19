"""Filtered calls run eagerly: first watched, then not watched, with the hook off in the functions that they call."""

import gc
import random
import subprocess
import sys
import threading

import pytest
from interested import Asked, Holder, Thing, nothing_given, plain

import framesmith_frames as frames

#: Deeper than names are followed.
SHELF = Holder(Holder(Thing()))


def test_a_callback_into_interesting_code_is_found_inside_filtered_calls():
    def apply(function, values):
        for value in values:
            inner(function, value)

    def inner(function, value):
        return function(value)

    def program(function):
        return apply(function, [1, 2])

    def harmless(value):
        return value

    things = [Thing()]

    def interesting(value):
        return things[0]

    asked = Asked()
    with frames.activated(asked):
        for _ in range(50):
            program(harmless)
        assert asked.names == ["program"] * 50
        program(interesting)
    assert asked.names[51:] == ["apply", "inner", "interesting", "inner", "interesting"]


def test_calls_are_no_longer_watched_when_nothing_was_found_in_several():
    states = []

    def deep():
        return plain()

    def shallow():
        states.append(frames.hook_state()["on_top"])
        return deep()

    def program():
        return shallow()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            program()
        assert frames.hook_state()["on_top"]
    # Watched: four calls before it is trusted, and the deep searches at calls 8 and 16.
    assert states == [index in (1, 2, 3, 4, 8, 16) for index in range(1, 21)]


def test_calls_in_which_something_was_found_stay_watched():
    def deep():
        return plain(SHELF.held.held)

    def shallow():
        return deep()

    def program():
        return shallow()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            program()
    assert asked.names == ["program", "plain"] * 20


def test_a_callback_set_inside_an_unwatched_call_sees_calls():
    inner_asked = []

    def everything(frame):
        inner_asked.append(frame.code.co_name)
        return frames.RUN_ONCE("seen")

    def deep():
        with frames.activated(everything):
            plain()
        return nothing_given()

    def program():
        return deep()

    def outer():
        return program()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            outer()
        assert frames.hook_state()["on_top"]
    assert inner_asked == ["plain"] * 20
    assert asked.names == ["outer"] * 20


def test_a_compiled_function_inside_an_unwatched_call_is_hooked():
    asked_inside = Asked()
    compiled = frames.CompiledFunction(lambda thing: plain(thing), asked_inside)
    things = Holder(Thing())

    def deep(index):
        return compiled(things.held if index > 10 else index)

    def program(index):
        return deep(index)

    asked = Asked()
    with frames.activated(asked):
        for index in range(20):
            program(index)
    assert asked_inside.names.count("<lambda>") == 20
    assert asked_inside.names.count("plain") == 9


def test_exceptions_recursion_and_generators_inside_filtered_calls():
    def fails(depth):
        if depth == 0:
            raise KeyError("deep")
        return fails(depth - 1)

    def numbers(count):
        yield from range(count)
        plain(count)

    def program(index):
        with pytest.raises(KeyError):
            fails(index % 7)
        return sum(numbers(index))

    asked = Asked()
    with frames.activated(asked):
        for index in range(100):
            assert program(index) == sum(range(index))
        assert frames.hook_state()["on_top"]
    assert set(asked.names) == {"program"}


def test_deep_recursion_in_filtered_calls():
    def down(depth):
        return 0 if depth == 0 else 1 + down(depth - 1)

    def program(depth):
        return down(depth)

    asked = Asked()
    with frames.activated(asked):
        for _ in range(10):
            assert program(800) == 800
            with pytest.raises(RecursionError):
                program(sys.getrecursionlimit() + 10)
    assert set(asked.names) == {"program"}


def test_reset_inside_a_watched_call():
    def deep():
        frames.reset()

    def program():
        deep()

    asked = Asked()
    with frames.activated(asked):
        for _ in range(10):
            program()
    assert asked.names == ["program"]


def test_threads_with_filtered_and_offered_calls():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    errors = []

    def work(seed):
        chosen = random.Random(seed)
        asked = Asked()

        def deep(value):
            return plain(value)

        def program(value):
            return deep(value)

        try:
            expected = 0
            with frames.activated(asked):
                for _ in range(2000):
                    thing = chosen.random() < 0.01
                    program(Thing() if thing else 1)
                    expected += 1 + 2 * thing
                    if chosen.random() < 0.001:
                        gc.collect(0)
            assert len(asked.names) == expected
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_a_thread_activated_while_another_runs_unwatched():
    ready, go = threading.Event(), threading.Event()
    asked = Asked()

    def other():
        mine = Asked()
        with frames.activated(mine):
            nothing_given()
            ready.set()
            go.wait(10)
            plain(SHELF.held.held)
        asked.other = mine.names

    def deep(last):
        if last:
            thread = threading.Thread(target=other)
            thread.start()
            ready.wait(10)
            go.set()
            thread.join()
        return 1

    def program(last):
        return deep(last)

    with frames.activated(asked):
        for index in range(11):
            program(index == 10)
        assert frames.hook_state()["on_top"]
    assert asked.other == ["nothing_given", "plain"]
    assert set(asked.names) == {"program"}


def test_tracing_sees_unwatched_calls():
    def deep():
        return 1

    def shallow():
        return deep()

    def program():
        return shallow()

    seen = []

    def tracer(frame, event, argument):
        seen.append((frame.f_code.co_name, event))

    asked = Asked()
    with frames.activated(asked):
        for _ in range(20):
            program()
        sys.setprofile(tracer)
        try:
            program()
        finally:
            sys.setprofile(None)
    assert [name for name, event in seen if event == "call" and name in ("program", "shallow", "deep")] == [
        "program", "shallow", "deep",
    ]  # fmt: skip


def test_the_interpreter_ends_inside_an_unwatched_call():
    program = """
import sys
import framesmith_frames as frames
def callback(frame): return frames.SKIP("seen")
frames.set_interest_filter(callback, ("library",))
class Noisy:
    def __del__(self): shallow(0)
def deep(index):
    if index == 19:
        sys.exit(0)
def shallow(index): return deep(index)
def program(index): return shallow(index)
keep = Noisy()
frames.set_callback(callback)
for index in range(20): program(index)
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
