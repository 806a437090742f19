"""The calls that are offered to the callback, and their FrameInfo."""

import asyncio
import contextlib

import pytest

import framesmith_frames as frames


class Watching:
    """Records offered calls and lets them run."""

    def __init__(self):
        self.frames = []

    def __call__(self, frame):
        self.frames.append(frame)
        return frames.RUN_ONCE("watching")

    @property
    def names(self):
        return [frame.code.co_name for frame in self.frames]


def test_the_frame_info():
    outer = 3

    def function(a, /, b, *rest, c, **more):
        return a + outer

    watching = Watching()
    with frames.activated(watching):
        assert function(1, 2, 4, c=5, d=6) == 4
    (frame,) = watching.frames
    assert frame.code is function.__code__
    assert frame.function is function
    assert frame.arguments == (1, 2, 5, (4,), {"d": 6})
    with pytest.deprecated_call():
        assert frame.locals is frame.arguments
    assert frame.globals is globals()
    assert frame.builtins is frame.globals["__builtins__"] or frame.builtins == vars(__import__("builtins"))
    assert frame.closure == function.__closure__
    with frames.activated(watching, cache=7):
        plain()
    assert (frame.cache, watching.frames[-1].cache) == (watching.frames[0].cache, 7)
    assert "function" in repr(frame)


def test_a_function_without_free_variables_has_no_closure():
    watching = Watching()
    with frames.activated(watching):
        plain()
    assert watching.frames[0].closure is None


def plain():
    return 1


def test_generators_coroutines_classes_modules_and_exec_are_not_offered():
    def generator():
        plain()
        yield 1
        plain()

    async def coroutine():
        plain()
        return 2

    async def async_generator():
        yield 3

    code = plain.__code__
    watching = Watching()
    with frames.activated(watching):
        list(generator())
        with contextlib.suppress(StopIteration):
            coroutine().send(None)
        async_generator()

        class Local:
            x = 1

        exec("y = 1", {})
        eval("1 + 1")
        exec(code, {})
    assert set(watching.names) <= {"plain", "__init__", "__enter__", "__exit__"}
    assert watching.names.count("plain") == 3


def test_closing_and_throwing_into_generators_while_active():
    events = []

    def generator():
        try:
            while True:
                with contextlib.suppress(KeyError):
                    events.append((yield len(events)))
        finally:
            events.append("closed")

    with frames.activated(Watching()):
        made = generator()
        next(made)
        made.send("a")
        made.throw(KeyError())
        made.close()
    assert events == ["a", "closed"]


def test_asyncio_runs_while_active(replacing):
    def original(x):
        return x

    def replacement(x):
        return -x

    async def step(x):
        await asyncio.sleep(0)
        return original(x)

    async def main():
        return await asyncio.gather(*(step(i) for i in range(5)))

    with frames.activated(replacing({original: replacement})):
        assert asyncio.run(main()) == [0, -1, -2, -3, -4]


def test_the_hook_is_off_while_a_callback_or_a_checker_runs():
    asked = []

    def helper():
        return 1

    def check(args, function):
        return helper() == 1

    def callback(frame):
        asked.append(frame.code.co_name)
        helper()
        return frames.Entry(check, frame.code)

    with frames.activated(callback):
        plain()
        plain()
    assert asked == ["plain"]


def test_nested_activation_restores_the_outer_callback():
    outer, inner = Watching(), Watching()
    with frames.activated(outer):
        plain()
        with frames.activated(inner):
            plain()
            with frames.deactivated():
                plain()
        plain()
    assert (outer.names, inner.names) == (["plain", "plain"], ["plain"])


def test_set_callback_answers_the_previous_one():
    watching = Watching()
    assert frames.set_callback(watching) is None
    assert frames.get_callback() is watching
    assert frames.set_callback(None) is watching
    assert frames.get_callback() is None


def test_a_callback_can_switch_itself_off():
    asked = []

    def callback(frame):
        asked.append(frame.code.co_name)
        frames.set_callback(None)
        return frames.RUN_ONCE("leaving")

    frames.set_callback(callback)
    plain()
    plain()
    assert asked == ["plain"]


def test_frames_already_running_are_not_offered_but_their_callees_are():
    watching = Watching()

    def caller():
        frames.set_callback(watching)
        plain()
        frames.set_callback(None)

    caller()
    assert watching.names == ["plain"]
