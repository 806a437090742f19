"""Trace functions, profilers, monitoring tools, debuggers: they see the calls that happen and are not compiled."""

import bdb
import cProfile
import pstats
import sys
import threading

import pytest

import framesmith_frames as frames

pytestmark = pytest.mark.usefixtures("either_way")


def helper(x):
    return x + 1


def original(x):
    return helper(x)


def replacement(x):
    y = helper(x)
    return -y


def failing(x):
    raise ValueError(helper(x))


def test_settrace_sees_a_balanced_call(replacing):
    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name != "__exit__":
            events.append((event, frame.f_code.co_name))
        return tracer

    callback = replacing({original: replacement})
    with frames.activated(callback):
        original(1)
        sys.settrace(tracer)
        result = original(1)
        sys.settrace(None)
    assert result == -2
    assert [event for event in events if event[0] in ("call", "return")] == [
        ("call", "replacement"),
        ("call", "helper"),
        ("return", "helper"),
        ("return", "replacement"),
    ]
    assert events.count(("line", "replacement")) == 2
    assert "tracer" not in callback.asked


def test_settrace_sees_an_exception_pass(replacing):
    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_filename == __file__ and event != "line":
            events.append((event, frame.f_code.co_name))
        return tracer

    with frames.activated(replacing({original: failing})):
        try:
            sys.settrace(tracer)
            original(1)
        except ValueError as error:
            sys.settrace(None)
            assert error.args == (2,)
    assert events == [
        ("call", "failing"),
        ("call", "helper"),
        ("return", "helper"),
        ("exception", "failing"),
        ("return", "failing"),
    ]


@pytest.mark.parametrize("code", [replacement, failing])
def test_setprofile_is_balanced(replacing, code):
    depths = []

    def profiler(frame, event, arg):
        if frame.f_code.co_filename == __file__ and event in ("call", "return"):
            depths.append((event, frame.f_code.co_name))

    def program():
        for i in range(3):
            try:
                original(i)
            except ValueError:
                pass

    with frames.activated(replacing({original: code})):
        sys.setprofile(profiler)
        program()
        sys.setprofile(None)
    stack = []
    for event, name in depths:
        if event == "call":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    assert depths.count(("call", code.__name__)) == 3
    assert ("call", "original") not in depths


def test_cprofile_counts_each_call_once(replacing):
    profile = cProfile.Profile()
    with frames.activated(replacing({original: replacement})):
        profile.enable()
        for i in range(20):
            original(i)
        profile.disable()
    counts = {key[2]: value[1] for key, value in pstats.Stats(profile).stats.items()}
    assert counts["replacement"] == 20
    assert counts["helper"] == 20
    assert "original" not in counts


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring came with 3.12")
@pytest.mark.parametrize("code", [replacement, failing])
def test_monitoring_is_balanced_and_its_callbacks_are_not_compiled(replacing, code):
    monitoring = sys.monitoring
    events = monitoring.events
    seen = []

    def tool(name):
        def note(code, *rest):
            if code.co_filename == __file__:
                seen.append((name, code.co_name))

        return note

    callback = replacing({original: code})
    monitoring.use_tool_id(3, "framesmith-frames tests")
    try:
        for name in ("PY_START", "PY_RETURN", "PY_UNWIND", "PY_THROW"):
            monitoring.register_callback(3, getattr(events, name), tool(name))
        with frames.activated(callback):
            monitoring.set_events(3, events.PY_START | events.PY_RETURN | events.PY_UNWIND | events.PY_THROW)
            try:
                original(1)
            except ValueError:
                pass
            monitoring.set_events(3, 0)
    finally:
        monitoring.free_tool_id(3)
    interesting = [event for event in seen if event[1] in ("original", "replacement", "failing", "helper")]
    assert interesting == [
        ("PY_START", code.__name__),
        ("PY_START", "helper"),
        ("PY_RETURN", "helper"),
        ("PY_UNWIND" if code is failing else "PY_RETURN", code.__name__),
    ]
    assert "note" not in callback.asked


def test_a_debugger_stops_in_replaced_code(replacing):
    stops = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            if self.break_here(frame):
                stops.append((frame.f_code.co_name, frame.f_locals.get("y")))
            self.set_continue()

    debugger = Debugger()
    callback = replacing({original: replacement})
    with frames.activated(callback):
        original(1)
        debugger.set_break(__file__, replacement.__code__.co_firstlineno + 2)
        debugger.runcall(original, 5)
        debugger.clear_all_breaks()
        sys.settrace(None)
    assert ("replacement", 6) in stops


def test_threads_with_a_trace_function(replacing):
    lines = []
    callback = replacing({original: replacement})

    def tracer(frame, event, arg):
        if frame.f_code.co_filename == __file__ and event == "call":
            lines.append(frame.f_code.co_name)

    def work():
        with frames.activated(callback):
            original(1)

    threading.settrace(tracer)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.settrace(None)
    assert lines == ["work", "replacement", "helper"]
