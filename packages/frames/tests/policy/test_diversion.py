"""`divert_by`: calls diverted by a setting of the program. `recursive` of SKIP and RUN_ONCE: no hook in callees."""

import sys
import threading

import pytest

import framesmith_frames as frames

NAMESPACE: dict[str, object] = {"setting": None}


def plain(x, y=1):
    return "eager", x, y


def first(x, y=1):
    return "first", x, y


def second(x, y=1):
    return "second", x, y


def always(args, function):
    return True


def giving(function, complete=True):
    """A callback that answers with this function's code, and counts its calls."""

    def callback(frame):
        callback.asked += 1
        if frame.code is not plain.__code__:
            return frames.RUN_ONCE("not this one")
        return frames.Entry(always, function.__code__, complete=complete)

    callback.asked = 0
    return callback


@pytest.fixture
def judged():
    """The values passed to `judge`; a callable value is the diversion."""
    values = []

    def judge(value):
        values.append(value)
        if isinstance(value, Exception):
            raise value
        return value if callable(value) else None

    former = frames.divert_by(NAMESPACE, "setting", judge)
    yield values
    NAMESPACE["setting"] = None
    assert frames.divert_by(*(former or ({}, "setting", judge))) == (NAMESPACE, "setting", judge)
    frames.reset()


def test_a_value_is_judged_once_and_means_nothing(judged):
    compiled = frames.CompiledFunction(plain, giving(first))
    for value in ("one", "one", "two"):
        NAMESPACE["setting"] = value
        assert compiled(1) == ("first", 1, 1) and compiled(1) == ("first", 1, 1)
    assert judged == ["one", "two"]
    del NAMESPACE["setting"]
    assert compiled(1) == ("first", 1, 1)


@pytest.mark.parametrize("complete", [True, False])
def test_calls_run_eagerly_and_so_does_what_they_call(judged, complete):
    callback = giving(first, complete)
    inner = frames.CompiledFunction(plain, callback)

    def outer(x):
        return inner(x), plain(x)

    compiled = frames.CompiledFunction(outer, callback)
    assert inner(0) == ("first", 0, 1)
    asked = callback.asked
    NAMESPACE["setting"] = lambda callback, function: None
    assert compiled(2) == (("eager", 2, 1), ("eager", 2, 1)) and inner(3, y=4) == ("eager", 3, 4)
    with frames.activated(callback):
        assert plain(5) == ("eager", 5, 1) and outer(6) == (("eager", 6, 1), ("eager", 6, 1))
    assert callback.asked <= asked + 1  # of the block's own call of `outer`, which has no entry to divert from
    NAMESPACE["setting"] = None
    assert inner(7) == ("first", 7, 1)


def test_another_callback_compiles(judged):
    one, other = giving(first), giving(second)
    compiled = frames.CompiledFunction(plain, one)
    assert compiled(1) == ("first", 1, 1)
    NAMESPACE["setting"] = lambda callback, function: other
    assert [compiled(1), compiled(2, y=3)] == [("second", 1, 1), ("second", 2, 3)] and other.asked == 1
    with frames.activated(one):
        assert plain(4) == ("second", 4, 1)
    assert frames.get_callback() is None
    NAMESPACE["setting"] = None
    assert compiled(1) == ("first", 1, 1) and (one.asked, other.asked) == (1, 1)


def test_the_callback_itself_changes_nothing(judged):
    seen = []

    def same(callback, function):
        seen.append(function)
        return callback

    compiled = frames.CompiledFunction(plain, giving(first))
    NAMESPACE["setting"] = same
    assert compiled(1) == ("first", 1, 1) and compiled(1) == ("first", 1, 1)
    assert set(seen) == {plain}


def test_exceptions_reach_the_caller(judged):
    compiled = frames.CompiledFunction(plain, giving(first))
    compiled(1)
    NAMESPACE["setting"] = ValueError("judged")
    with pytest.raises(ValueError, match="judged"):
        compiled(1)
    with pytest.raises(ValueError, match="judged"), frames.activated(compiled.callback):
        plain(1)

    def refuse(callback, function):
        raise KeyError("diverted")

    NAMESPACE["setting"] = refuse
    with pytest.raises(KeyError, match="diverted"):
        compiled(1)
    NAMESPACE["setting"] = None
    assert compiled(1) == ("first", 1, 1)


def test_threads_see_the_setting(judged):
    compiled = frames.CompiledFunction(plain, giving(first))
    compiled(1)
    found = []

    def run():
        found.append([compiled(i)[0] for i in range(200)])

    NAMESPACE["setting"] = lambda callback, function: None
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["eager"] * 200] * 8


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError):
        frames.divert_by([], "setting", print)
    with pytest.raises(TypeError):
        frames.divert_by({}, "setting", None)


def test_nothing_leaks(judged):
    compiled = frames.CompiledFunction(plain, giving(first))
    other = giving(second)

    def eagerly(callback, function):
        return None

    def elsewhere(callback, function):
        return other

    def turn():
        for setting in (eagerly, elsewhere, None):
            NAMESPACE["setting"] = setting
            compiled(1)
            with frames.activated(compiled.callback):
                plain(2)
        judged.clear()

    turn()
    counted = [sys.getrefcount(each) for each in (eagerly, elsewhere, other, compiled.callback, NAMESPACE)]
    for _ in range(50):
        turn()
    assert [sys.getrefcount(each) for each in (eagerly, elsewhere, other, compiled.callback, NAMESPACE)] == counted


# SKIP(recursive=True), RUN_ONCE(recursive=True)


def calls(x):
    return plain(x), frames.get_callback() is not None


def skipping(recursive):
    def callback(frame):
        if frame.code is calls.__code__:
            callback.asked += 1
            return frames.SKIP("left out", recursive=recursive)
        return giving(first)(frame)

    callback.asked = 0
    return callback


@pytest.mark.parametrize("recursive", [True, False])
def test_a_recursive_skip_includes_callees(recursive):
    callback = skipping(recursive)
    inner = "eager" if recursive else "first"
    with frames.activated(callback):
        for x in range(3):
            assert calls(x) == ((inner, x, 1), True)
        assert plain(9) == ("first", 9, 1)
    assert callback.asked == 1


def test_compiled_functions_inside_are_compiled():
    compiled = frames.CompiledFunction(plain, giving(first))

    def outer(x):
        return compiled(x), plain(x)

    def callback(frame):
        if frame.code is outer.__code__:
            return frames.SKIP("left out", recursive=True)
        return frames.Entry(always, second.__code__, complete=True)

    with frames.activated(callback):
        found = [outer(1), outer(2)]
    assert found == [(("first", x, 1), ("eager", x, 1)) for x in (1, 2)]


@pytest.mark.parametrize("answer", [frames.SKIP, frames.RUN_ONCE])
def test_answers_have_the_attribute_recursive(answer):
    assert answer("why", recursive=True).recursive and not answer("why").recursive


def test_a_recursive_call_run_once_includes_its_callees_and_the_next_call_is_offered():
    answers = [frames.RUN_ONCE("once", recursive=True), frames.RUN_ONCE("once"), frames.SKIP("left out")]

    def callback(frame):
        return answers.pop(0) if frame.code is calls.__code__ else giving(first)(frame)

    with frames.activated(callback):
        assert [calls(x)[0] for x in range(4)] == [("eager", 0, 1), *(("first", x, 1) for x in (1, 2, 3))]
        assert frames.get_callback() is callback
    assert not answers


def test_an_exception_ends_a_recursive_call_run_once():
    def fails(x):
        return plain(x) + 1

    def callback(frame):
        return frames.RUN_ONCE("once", recursive=True) if frame.code is fails.__code__ else giving(first)(frame)

    with frames.activated(callback):
        with pytest.raises(TypeError):
            fails(1)
        assert plain(9) == ("first", 9, 1)
