"""The per-code cache: order, marks, counts, resets, lifetimes."""

import gc
import sys
import types
import weakref

import pytest

import framesmith_frames as frames


def target(x):
    return x


def one(x):
    return 1


def two(x):
    return 2


def three(x):
    return 3


class ByType:
    """One entry for each type of the argument."""

    CODES = {int: one.__code__, str: two.__code__, list: three.__code__}

    def __init__(self):
        self.asked = 0

    def __call__(self, frame):
        if frame.code is not target.__code__:
            return frames.SKIP("other")
        self.asked += 1
        kind = type(frame.arguments[0])
        return frames.Entry(lambda args, function: type(args[0]) is kind, self.CODES[kind])


def kinds():
    return [entry.code.co_name for entry in frames.entries(target)]


def test_the_entry_used_last_is_tried_first():
    callback = ByType()
    with frames.activated(callback):
        assert (target(1), target("a"), target([])) == (1, 2, 3)
        assert kinds() == ["three", "two", "one"]
        assert target(1) == 1
        assert kinds() == ["one", "three", "two"]
        assert target([]) == 3
        assert kinds() == ["three", "one", "two"]
        held = frames.entries(target), [target("a") for _ in range(3)]
    assert kinds() == ["two", "three", "one"]
    assert callback.asked == 3
    assert [entry.hits for entry in held[0]] == [1, 1, 3]
    assert frames.stats(target) == (5, 3, 0, 0, 0, 0, 0, None)


def test_skip_is_answered_once_and_reset_forgets_it():
    asked = []

    def callback(frame):
        asked.append(frame.code.co_name)
        return frames.SKIP("because")

    with frames.activated(callback):
        target(1), target(1), target(1)
        assert asked == ["target"]
        assert frames.skip_reason(target) == "because"
        assert frames.stats(target) == (0, 1, 2, 0, 0, 0, 0, "because")
        frames.reset(target)
        target(1)
    assert asked == ["target", "target"]


def test_run_once_is_asked_every_time():
    asked = []

    def callback(frame):
        asked.append(frame.code.co_name)
        return frames.RUN_ONCE("not yet")

    with frames.activated(callback):
        assert [target(i) for i in range(3)] == [0, 1, 2]
    assert len([name for name in asked if name == "target"]) == 3
    assert frames.stats(target).run_once == 3
    assert frames.stats(target).reason == "not yet"
    assert frames.skip_reason(target) is None


def test_a_skip_after_entries_keeps_the_entries():
    """As a callback does at its limit of entries."""
    by_type = ByType()

    def callback(frame):
        return by_type(frame) if by_type.asked < 2 else frames.SKIP("enough")

    with frames.activated(callback):
        assert (target(1), target("a"), target([]), target([]), target(1)) == (1, 2, [], [], 1)
    assert frames.stats(target) == (1, 3, 1, 0, 0, 0, 0, "enough")
    assert by_type.asked == 2


def test_entries_belong_to_the_callback_that_made_them():
    class Answering:
        def __init__(self, code):
            self.code = code

        def __call__(self, frame):
            if frame.code is not target.__code__:
                return frames.SKIP("other")
            return frames.Entry(lambda args, function: True, self.code)

        method = __call__

    def run(callback):
        with frames.activated(callback):
            return target(0)

    first, second = Answering(one.__code__), Answering(two.__code__)
    assert [run(first), run(second), run(first), run(second.method), run(second.method)] == [1, 2, 1, 2, 2]
    assert frames.stats(target).misses == 3
    assert len(frames.entries(target)) == 3
    with frames.activated(first):
        assert [entry.code.co_name for entry in frames.entries(target)] == ["one"]
    third = frames.CompiledFunction(target, second)
    assert third(0) == 2
    assert frames.stats(target).misses == 3
    del third, second
    gc.collect()
    assert [entry.code.co_name for entry in frames.entries(target)] == ["one"]
    del first
    assert frames.entries(target) == []


def test_callbacks_at_the_same_address_are_not_confused():
    def run(code):
        answer = frames.Entry(lambda args, function: True, code)
        with frames.activated(lambda frame: answer if frame.code is target.__code__ else frames.SKIP("other")):
            return target(0)

    assert [run(code) for code in (one.__code__, two.__code__, three.__code__) * 5] == [1, 2, 3] * 5


def test_a_callback_without_weak_references_shares_a_cache():
    class Slotted:
        __slots__ = ()

        def __call__(self, frame):
            return frames.SKIP("slotted")

    with frames.activated(Slotted()):
        target(1)
    with frames.activated(Slotted()):
        target(1)
    assert frames.stats(target).misses == 1


def test_caches_are_separate():
    def answering(answer):
        return lambda frame: answer if frame.code is target.__code__ else frames.SKIP("other")

    first, second, third = frames.new_cache(), frames.new_cache(), frames.new_cache()
    one_entry = answering(frames.Entry(lambda args, function: True, one.__code__))
    two_entry = answering(frames.Entry(lambda args, function: True, two.__code__))
    skipping = answering(frames.SKIP("third"))

    def results():
        found = []
        for callback, cache in [(one_entry, first), (two_entry, second), (skipping, third)]:
            with frames.activated(callback, cache=cache):
                found.append(target(0))
        return found

    assert results() == results() == [1, 2, 0]
    assert {entry.code.co_name for entry in frames.entries(target)} == {"one", "two"}
    assert [entry.code.co_name for entry in frames.entries(target, cache=second)] == ["two"]
    assert frames.entries(target, cache=third) == []
    assert frames.stats(target)[:3] == (2, 3, 1)
    compiled = [frames.CompiledFunction(target, callback, cache=second) for callback in (two_entry, one_entry)]
    assert [function(0) for function in compiled] == [2, 2]
    assert compiled[0].cache == second
    frames.reset(cache=first)
    assert [entry.code.co_name for entry in frames.entries(target)] == ["two"]
    frames.reset(target, cache=second)
    assert frames.entries(target) == []
    assert frames.skip_reason(target) == "third"
    assert results() == [1, 2, 0]


def test_nested_activations_restore_the_cache_too():
    cache = frames.new_cache()
    seen = []

    def outer(frame):
        seen.append("outer")
        return frames.SKIP("outer")

    def inner(frame):
        return frames.Entry(lambda args, function: True, one.__code__)

    with frames.activated(outer, cache=cache):
        with frames.activated(inner):
            assert target(7) == 1
        assert target(7) == 7
    assert seen == ["outer"]


@pytest.mark.parametrize("wrong", [-1, 1 << 64, "a"])
def test_a_cache_is_a_small_integer(wrong):
    with pytest.raises((ValueError, TypeError)):
        frames.set_callback(None, cache=wrong)


def test_explicit_marks_survive_a_reset():
    callback = ByType()
    frames.skip(target, "by hand")
    with frames.activated(callback):
        assert target(1) == 1
        frames.reset()
        assert target("a") == "a"
        assert frames.skip_reason(target.__code__) == "by hand"
        assert frames.unskip(target) is True
        assert frames.unskip(target) is False
        assert target("a") == 2


def test_reset_drops_entries_and_counts_but_keeps_residual_code_unoffered():
    callback = ByType()
    with frames.activated(callback):
        target(1)
        frames.reset()
        assert frames.entries(target) == []
        assert frames.stats(target) == (0, 0, 0, 0, 0, 0, 0, None)
        one(5)
        assert frames.skip_reason(one) is not None
        assert target(1) == 1
    assert callback.asked == 2


def test_reset_while_the_code_and_its_check_run():
    def check(args, function):
        frames.reset()
        return True

    def replacement(x):
        frames.reset(target)
        return "replaced"

    def callback(frame):
        return frames.Entry(check, replacement.__code__)

    with frames.activated(callback):
        results = target(0), target(1), target(2)
    assert results == ("replaced",) * 3


def test_an_entry_made_during_a_reset_is_used_once_and_dropped():
    def callback(frame):
        frames.reset()
        return frames.Entry(lambda args, function: True, one.__code__)

    with frames.activated(callback):
        assert target("a") == 1
    assert frames.entries(target) == []


def test_methods_and_functions_stand_for_their_code():
    class Thing:
        def method(self):
            return 1

    frames.skip(Thing().method, "a method")
    assert frames.skip_reason(Thing.method) == frames.skip_reason(Thing.method.__code__) == "a method"


def test_entries_die_with_their_code():
    namespace = {}
    exec("def f(x):\n    return x\ndef g(x):\n    return -x", namespace)
    entry = frames.Entry(lambda args, function: True, namespace["g"].__code__)
    dead = weakref.ref(entry)

    def callback(frame, entry=entry):
        return entry if frame.code.co_name == "f" else frames.SKIP("other")

    with frames.activated(callback):
        assert namespace["f"](1) == -1
    callback.__defaults__ = None
    del entry
    gc.collect()
    assert dead() is not None
    assert frames.entries(namespace["f"]) == [dead()]
    namespace.clear()
    gc.collect()
    assert dead() is None


def test_entries_die_at_a_reset():
    callback = ByType()
    with frames.activated(callback):
        target(1)
    dead = weakref.ref(frames.entries(target)[0])
    frames.reset()
    gc.collect()
    assert dead() is None


def test_code_that_dies_while_it_runs():
    namespace = {}

    def forget():
        namespace.clear()
        gc.collect()
        return "alive"

    exec("def f(forget):\n    return None\ndef g(forget):\n    return forget(), 1", namespace)
    code = namespace["g"].__code__

    def callback(frame):
        if frame.code.co_name == "f":
            return frames.Entry(lambda args, function: True, code)
        return frames.SKIP("other")

    with frames.activated(callback):
        assert namespace["f"](forget) == ("alive", 1)


def test_a_function_that_gets_new_code_loses_its_entries():
    def function(x):
        return "before"

    def after(x):
        return "after"

    def callback(frame):
        return frames.Entry(lambda args, f: True, one.__code__) if frame.code is old else frames.SKIP("other")

    old = function.__code__
    with frames.activated(callback):
        assert function(0) == 1
        function.__code__ = after.__code__
        assert function(0) == "after"


@pytest.mark.parametrize("call", [frames.entries, frames.stats, frames.skip_reason, frames.unskip, frames.reset])
def test_what_is_not_code_is_refused(call):
    with pytest.raises(TypeError, match="expected a code object, a Python function or a method, not int"):
        call(3)


def packed(first, *rest, key=0, **more):
    return first, rest, key, more


def test_flat_code_takes_every_argument_by_position():
    entry = frames.Entry(lambda args, function: True, packed.__code__)
    flat = types.FunctionType(entry.flat_code, globals())
    assert flat(1, 2, (3,), {"a": 4}) == (1, (3,), 2, {"a": 4})
    assert entry.flat_code is entry.flat_code
    assert frames.Entry(lambda args, function: True, one.__code__).flat_code is one.__code__


def test_flat_code_is_what_a_compiled_function_runs():
    seen = []
    entry = frames.Entry(lambda args, function: True, packed.__code__)
    made = frames.CompiledFunction(packed, lambda frame: entry)
    made(1)  # the call that is offered runs in its frame
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code))
    try:
        made(1, 2, key=3)
    finally:
        sys.setprofile(None)
    assert entry.flat_code in seen
