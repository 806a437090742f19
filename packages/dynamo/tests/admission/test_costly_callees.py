"""Functions in which every caller's graph breaks, or the compiler fails, are no longer inlined."""

import types

import pytest
import torch
from driver import compiled, run_eagerly

import framesmith_frames as frames
from framesmith_dynamo import FrameConverter
from framesmith_dynamo.admission.costly_callees import MAX_CALLERS
from framesmith_dynamo.interpreter import inlining

X = torch.arange(3.0)


def printing(x):
    y = x + 1
    print(end="")
    return y * 2


def around(x):
    return printing(x) + 1


def through(fn, x):
    return fn(x)


def fine(x):
    return x.cos()


def maybe(x, flag):
    if flag:
        print(end="")
    return x + 1


def callers(count, source):
    """Return functions of different code, each calling `source`."""
    made = []
    for at in range(count):
        names = {}
        exec(f"def caller_{at}(x):\n    return ({source}) + {at}", globals(), names)
        made.append(names[f"caller_{at}"])
    return made


def run(functions, **options):
    """Call each twice under one converter; return the kinds of breaks in their own frames, and the events."""
    events = []
    fn = compiled(lambda call, x: call(x), **options)
    fn.converter = FrameConverter(run_eagerly, on_event=events.append, **options)
    for function in functions:
        with frames.activated(fn.converter):
            result = function(X)
            assert torch.equal(function(X), result)
        assert torch.equal(result, eager(function)(X))
    return events


def eager(function):
    return types.FunctionType(function.__code__, function.__globals__)


def kinds(events, function):
    return [event.broken.kind.id for event in events if event.kind == "break" and event.code is function.__code__]


@pytest.fixture(autouse=True)
def fresh():
    yield
    for function in (printing, around, through, fine, maybe):
        frames.reset(function.__code__)


@pytest.mark.parametrize(
    ("source", "blamed"), [("printing(x)", printing), ("around(x)", printing), ("through(printing, x)", printing)]
)
def test_no_longer_inlined_after_a_few_callers(source, blamed):
    functions = callers(MAX_CALLERS + 2, source)
    events = run(functions)
    *first, last = [kinds(events, function) for function in functions]
    assert first[0] == ["print"] and last == [inlining.NEVER_WORTH_IT.id]
    assert source != "printing(x)" or first[:MAX_CALLERS] == [["print"]] * MAX_CALLERS
    [costly] = [event for event in events if event.kind == "costly"]
    assert costly.code is blamed.__code__ and "framesmith.disable" in costly.detail and "print" in costly.detail


def test_one_that_gets_through_gives_another_chance():
    broken, free = callers(MAX_CALLERS, "maybe(x, True)"), callers(1, "maybe(x, False)")
    events = run([*broken[1:], *free, broken[0], *callers(1, "maybe(x, False) * 2")])
    assert not [event for event in events if event.kind == "costly"]


def test_a_helper_that_calls_what_it_is_given_is_not_blamed():
    events = run([*callers(MAX_CALLERS + 1, "through(printing, x)"), *(good := callers(2, "through(fine, x) * 3"))])
    assert [kinds(events, function) for function in good] == [[], []]


def test_the_same_caller_counts_once():
    [function] = callers(1, "printing(x.cos())")
    events = []
    converter = FrameConverter(run_eagerly, on_event=events.append, recompile_limit=20, dynamic=False)
    for size in range(1, 9):
        with frames.activated(converter):
            function(torch.ones(size))
    assert kinds(events, function) == ["print"] * 8


def test_where_the_compiler_failed_it_is_not_asked_again(monkeypatch):
    def fails(frame, target, args, kwargs):
        if target is torch.Tensor.cos or target == "cos":
            raise RuntimeError("of the compiler")
        return call_torch(frame, target, args, kwargs)

    from framesmith_dynamo.tensor_calls import calls

    call_torch = calls.call_torch
    monkeypatch.setattr(calls, "call_torch", fails)
    first, second = callers(2, "fine(x)")
    events = run([first, second])
    errors = [event.code for event in events if event.kind == "error"]
    assert errors == [first.__code__, fine.__code__]
    assert kinds(events, second) == [inlining.NEVER_WORTH_IT.id]
    assert len([event for event in events if event.kind == "costly"]) == 1


def test_frames_that_never_pay_are_reported():
    names = [f"{letter}{at}" for letter in "ab" for at in range(4)]

    def no_tensors(table):
        return sorted(table)

    events = []
    converter = FrameConverter(run_eagerly, on_event=events.append, recompile_limit=20, dynamic=False)
    for at in range(8):
        with frames.activated(converter):
            no_tensors(dict.fromkeys(names[: at + 1]))
    assert [event.kind for event in events if event.kind in ("costly", "skip")] == ["costly", "skip"]


def test_callers_of_a_refused_function_meet_its_own_break() -> None:
    frames.reset()

    def breaks(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return x + 1

    names = {"breaks": breaks}
    for at in range(6):
        exec(f"def caller_{at}(x): return breaks(x) * 2", names)

    def function(x: torch.Tensor) -> torch.Tensor:
        for each in range(6):
            x = names[f"caller_{each}"](x)
        return x

    fn = compiled(function, strict=False)
    fn(torch.ones(2))
    broken = [event.broken for event in fn.of_kind("break") if event.broken is not None]
    assert len({one.site for one in broken}) == 1 and len({str(one) for one in broken}) > 1
