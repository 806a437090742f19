"""Compiled functions whose own frames run eagerly: refused before, or reported after."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import framesmith_frames as frames


class Refused(Exception):
    """Raised by `refuse`."""


def refuse(function: Any, reason: str) -> None:
    raise Refused(f"{function.__name__}: {reason}")


@pytest.fixture(autouse=True)
def _no_handler() -> Iterator[None]:
    previous = frames.set_error_handler(lambda error, frame: None)
    yield
    frames.set_error_handler(previous)


def make(body: Callable[[], object] = list) -> Callable[[int], int]:
    def double(x: int) -> int:
        body()
        return x * 2

    double.__code__ = double.__code__.replace()  # nothing is known of it
    return double


def other(x: int) -> int:
    return x * 200


def entry_for(function: Any, **more: Any) -> frames.Entry:
    code = other.__code__.replace(co_freevars=function.__code__.co_freevars)
    return frames.Entry(lambda args, called: args[0] > 0, code, **more)


def raises(frame: Any) -> Any:
    raise ValueError


ANSWERS = {
    "skip": (lambda frame: frames.SKIP("skipped"), "skipped"),
    "once": (lambda frame: frames.RUN_ONCE("just now"), "just now"),
    "an error": (raises, "a callback or a check failed"),
    "nonsense": (lambda frame: 3, "a callback or a check failed"),
    "no fit": (lambda frame: entry_for(frame.function), "a new entry does not apply"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_refused_each_time(name: str) -> None:
    callback, reason = ANSWERS[name]
    ran: list[int] = []
    compiled = frames.CompiledFunction(make(lambda: ran.append(1)), callback, on_eager=refuse, refuses=True)
    for _ in range(3):
        with pytest.raises(Refused, match=reason):
            compiled(-1)
    assert not ran


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_reported_once(name: str) -> None:
    callback, reason = ANSWERS[name]
    reported: list[str] = []
    compiled = frames.CompiledFunction(make(), callback, on_eager=lambda function, why: reported.append(why))
    assert [compiled(-1) for _ in range(3)] == [-2] * 3
    assert len(reported) == 1 and reported[0].startswith(reason)


def test_quiet_answers_are_not_reported() -> None:
    for answer in (frames.SKIP("so", quiet=True), frames.RUN_ONCE("so", quiet=True)):
        for refuses in (False, True):
            compiled = frames.CompiledFunction(make(), lambda frame: answer, on_eager=refuse, refuses=refuses)
            assert [compiled(1), compiled(1)] == [2, 2]


def test_returned_is_called_after_the_call() -> None:
    """Not called if the call raises; its own exception reaches the caller."""
    log: list[str] = []

    def body() -> None:
        log.append("ran")
        if fails:
            raise KeyError("of the program")

    def returned() -> None:
        log.append("returned")
        if objects:
            raise Refused("it returned")

    def callback(frame: frames.FrameInfo) -> Any:
        whole = frame.code is function.__code__
        return frames.RUN_ONCE("so", quiet=True, returned=returned) if whole else frames.SKIP("a part")

    function = make(body)
    compiled = frames.CompiledFunction(function, callback)
    fails, objects = False, False
    assert [compiled(1), compiled(2)] == [2, 4] and log == ["ran", "returned"] * 2
    objects = True
    with pytest.raises(Refused, match="it returned"):
        compiled(1)
    log.clear()
    fails = True
    with pytest.raises(KeyError, match="of the program"):
        compiled(1)
    assert log == ["ran"]


def test_returned_must_be_callable() -> None:
    assert frames.RUN_ONCE("so").returned is None
    assert frames.RUN_ONCE("so", returned=list).returned is list
    with pytest.raises(TypeError, match="returned is a callable or None, not int"):
        frames.RUN_ONCE("so", returned=1)  # type: ignore[arg-type]


def test_returned_may_reset() -> None:
    function = make()
    answer = frames.RUN_ONCE("so", returned=frames.reset)
    compiled = frames.CompiledFunction(function, lambda frame: answer)
    assert [compiled(n) for n in range(3)] == [0, 2, 4]


def test_an_answer_is_collected_with_the_callable_that_holds_it() -> None:
    class Hearer:
        answer: object

        def __call__(self) -> None: ...

    hearer = Hearer()
    hearer.answer = frames.RUN_ONCE("so", returned=hearer)
    alive = weakref.ref(hearer)
    del hearer
    gc.collect()
    assert alive() is None


def test_marks_are_refused_while_they_last() -> None:
    function = make()
    compiled = frames.CompiledFunction(function, lambda frame: entry_for(function), on_eager=refuse, refuses=True)
    assert compiled(1) == 200
    frames.skip(function, "not this one")
    with pytest.raises(Refused, match="not this one"):
        compiled(1)
    frames.unskip(function)
    assert compiled(1) == 200


def test_during_a_callback() -> None:
    inner = frames.CompiledFunction(make(), lambda frame: frames.SKIP(""), on_eager=refuse, refuses=True)
    seen: list[str] = []

    def callback(frame: frames.FrameInfo) -> frames.SKIP:
        try:
            inner(1)
        except Refused as error:
            seen.append(str(error))
        return frames.SKIP("")

    frames.CompiledFunction(make(), callback)(1)
    assert seen and "being traced or compiled" in seen[0]


def test_in_a_trace_function() -> None:
    inner = frames.CompiledFunction(make(), lambda frame: entry_for(frame.function), on_eager=refuse, refuses=True)
    seen: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        if not seen:
            try:
                inner(1)
            except Refused as error:
                seen.append(str(error))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        make()(1)
    finally:
        sys.settrace(before)
    assert seen and "trace function" in seen[0]


def test_on_a_c_stack_that_is_nearly_full() -> None:
    compiled = frames.CompiledFunction(make(), lambda frame: frames.SKIP("seen"), on_eager=refuse, refuses=True)
    seen: set[str] = set()

    def down(depth: int) -> None:
        try:
            compiled(1)
        except Refused as error:
            seen.add(str(error))
        if depth and not any("C stack" in text for text in seen):
            list(map(down, [depth - 1]))

    def run() -> None:
        sys.setrecursionlimit(100_000)
        with frames.activated(lambda frame: frames.SKIP("")):
            down(10_000)

    limit, size = sys.getrecursionlimit(), threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
    assert {text.partition(": ")[2] for text in seen} == {"seen", "more than half of a thread's C stack is used"}


def test_what_was_computed_inside_is_enough() -> None:
    reported: list[str] = []

    def callback(frame: frames.FrameInfo) -> Any:
        return entry_for(frame.function) if frame.code is inner.__code__ else frames.SKIP("the outer one")

    inner = make()
    compiled = frames.CompiledFunction(
        make(lambda: inner(1)), callback, on_eager=lambda *why: reported.append("reported")
    )
    assert compiled(1) == compiled(1) == 2 and not reported


def test_entries_that_compute_nothing() -> None:
    reported: list[str] = []
    for refuses in (False, True):
        function = make()
        compiled = frames.CompiledFunction(
            function,
            lambda frame: entry_for(frame.function, eager="only a break"),
            on_eager=lambda function, why: reported.append(why),
            refuses=refuses,
        )
        assert [compiled(1), compiled(1)] == [200, 200]
    assert reported == ["only a break"]  # it is no eager frame, and so is not refused
    function = make()
    nothing = entry_for(function, eager="")
    compiled = frames.CompiledFunction(function, lambda frame: nothing, on_eager=refuse)
    assert [compiled(1), compiled(1)] == [200, 200]


def test_a_report_that_raises_and_a_reset() -> None:
    compiled = frames.CompiledFunction(make(), lambda frame: frames.SKIP("so"), on_eager=refuse)
    with pytest.raises(Refused):
        compiled(1)
    reported: list[str] = []
    compiled = frames.CompiledFunction(
        make(), lambda frame: frames.SKIP("so"), on_eager=lambda function, why: reported.append(why)
    )
    for _ in range(2):
        assert compiled(1) == compiled(1) == 2
        frames.reset()
    assert reported == ["so", "so"]


def test_errors_of_the_call_itself_go_first() -> None:
    compiled = frames.CompiledFunction(make(lambda: 1 / 0), lambda frame: frames.SKIP(""), on_eager=refuse)
    with pytest.raises(ZeroDivisionError):
        compiled(1)
    whole = frames.CompiledFunction(make(), lambda frame: frames.SKIP(""), on_eager=refuse, refuses=True)
    with pytest.raises(TypeError, match="missing 1 required"):
        whole()  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "value"), [("on_eager", 3), ("on_eager", "text")])
def test_bad_arguments(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        frames.CompiledFunction(make(), lambda frame: frames.SKIP(""), **{name: value})
    with pytest.raises(TypeError, match="eager must be a str"):
        frames.Entry(lambda args, called: True, other.__code__, eager=3)  # type: ignore[call-overload]
