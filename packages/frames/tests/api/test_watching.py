"""The frame observer."""

import framesmith_frames as frames


def outer():
    return inner(1) + inner(2)


def inner(x):
    return x


def other(x):
    return -x


def test_names_in_order():
    with frames.watch() as seen:
        assert outer() == 3
    assert seen.calls == ["outer", "inner", "inner"]
    outer()
    assert len(seen.calls) == 3


def test_an_observer_gets_the_arguments():
    arguments = []

    def observer(frame):
        arguments.append((frame.code.co_name, frame.arguments))

    with frames.watch(observer, only=lambda code: code is inner.__code__):
        outer()
    assert arguments == [("inner", (1,)), ("inner", (2,))]


def test_compiled_entries_are_seen_as_the_original(replacing):
    callback = replacing({inner: other})
    with frames.activated(callback):
        assert outer() == -3
        with frames.watch() as seen:
            assert outer() == 3
        assert outer() == -3
    assert seen.calls == ["outer", "inner", "inner"]


def test_two_watches_reject_different_code():
    with frames.watch(only=lambda code: code is not inner.__code__) as first:
        outer()
    with frames.watch(only=lambda code: code is not outer.__code__) as second:
        outer()
    assert (first.calls, second.calls) == (["outer"], ["inner", "inner"])


def test_an_observer_that_fails_does_not_disturb_the_program():
    errors = []
    frames.set_error_handler(lambda error, frame: errors.append(type(error)))
    with frames.watch(lambda frame: 1 // 0):
        assert outer() == 3
    assert errors == [ZeroDivisionError] * 3
