"""Resets and changes of code during a call: by finalizers, by diversions, by the call itself."""

import gc

import pytest

import framesmith_frames as frames


class Check:
    def __init__(self, value=None):
        self.value = value

    def __call__(self, args, function):
        return self.value is None or args[0] == self.value


class Resetting:
    """Garbage that resets a function when it is collected."""

    def __init__(self, function):
        self.function, self.me = function, self

    def __del__(self):
        frames.reset(self.function)


@pytest.fixture
def collecting():
    """Collect garbage at each allocation, from a call of the result on."""
    before = gc.get_threshold()
    gc.disable()

    def begin():
        gc.set_threshold(1, 0, 0)
        gc.enable()

    try:
        yield begin
    finally:
        gc.set_threshold(*before)
        gc.enable()


def entry_of(value, check=None):
    space = {}
    exec(f"def replaced(*args): return {value}", space)
    return frames.Entry(check or Check(), space["replaced"].__code__, complete=True)


def test_a_reset_while_arguments_are_bound(collecting):
    def original(*args):
        return 1

    compiled = frames.CompiledFunction(original, lambda info: entry_of(2))
    many = tuple(range(30))
    for _ in range(200):
        assert compiled(*many) == 2
        Resetting(original)
        collecting()
        assert compiled(*many) in (1, 2)
        gc.disable()


def test_a_reset_while_an_entry_is_added(collecting):
    def original(x):
        return 1

    def callback(info):
        [x] = info.arguments
        space = {}
        exec(f"def replaced(x): return {x}", space)
        entry = frames.Entry(Check(x), space["replaced"].__code__, complete=True)
        if x == 100:
            Resetting(original)
            collecting()
        return entry

    with frames.activated(callback):
        for _ in range(50):
            for x in range(5):
                assert original(x) == x
            assert original(100) == 100
            gc.disable()
            frames.reset(original)


def test_a_reset_inside_a_diversion():
    def original(x):
        return 1

    kept = []

    def diversion(callback, function):
        frames.reset(original)
        kept.extend(bytes([255]) * count for count in range(60, 200) for _ in range(20))
        return callback

    def callback(info):
        space = {}
        exec("def replaced(x): return 2", space)
        return frames.Entry(Check(), space["replaced"].__code__, complete=True)

    space = {"stance": None}
    former = frames.divert_by(space, "stance", lambda value: diversion if value else None)
    try:
        with frames.activated(callback):
            for turn in range(20):
                original(0)
                space["stance"] = f"x{turn}"
                assert original(0) == 2
                space["stance"] = None
                kept.clear()
    finally:
        frames.divert_by(*(former or ({}, "stance", lambda value: None)))


def test_a_function_that_gives_itself_another_code():
    class Callback:
        def __call__(self, info):
            return frames.RUN_ONCE("not yet")

    callback = Callback()
    frames.set_interest_filter(callback, ("nothing_like_it",))

    def other(x):
        return 2

    with frames.activated(callback):
        for _ in range(50):
            space = {"other": other}
            exec("def changing(x):\n    changing.__code__ = other.__code__\n    return 1", space)
            assert space["changing"](0) == 1
            assert space["changing"](0) == 2
