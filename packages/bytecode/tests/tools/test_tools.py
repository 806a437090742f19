"""Coverage, profilers, tracers and debuggers report the same for re-encoded functions."""

import bdb
import cProfile
import io
import re
import sys
import trace
from collections import Counter
from contextlib import redirect_stdout

import pytest
from event_recording import AGAIN, CASES, FILE, MODULE, NEW, load, monitoring, run_traced

pytestmark = pytest.mark.usefixtures("no_collection")


def line_coverage(case):
    """Lines and arcs between them, as a coverage tool collects them."""
    lines, arcs, last = set(), set(), {}

    def collect(frame, event, value):
        if frame.f_code.co_filename != FILE:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
            arcs.add((frame.f_code.co_qualname, last.get(frame), frame.f_lineno))
            last[frame] = frame.f_lineno
        elif event == "return":
            arcs.add((frame.f_code.co_qualname, last.pop(frame, None), None))
        return collect

    run_traced(case, collect)
    assert lines
    return lines, arcs


def line_profile(case):
    """Counts of runs of each line of each function, and of callers."""
    hits = Counter()

    def local(frame, event, value):
        hits[event, frame.f_code.co_qualname, frame.f_lineno, frame.f_back.f_lineno] += 1
        return local

    def start(frame, event, value):
        return local(frame, event, value) if frame.f_code.co_filename == FILE else None

    run_traced(case, start)
    assert hits
    return {key: count for key, count in hits.items() if key[1] != case.__qualname__}


def _function(key):
    return key[2].rpartition(".")[2]  # without the class, which `trace` guesses from what the collector finds


def standard_trace(case):
    """`trace.Trace`: counts of lines, called functions and their callers, and the listing it prints."""
    results = []
    for options in ({"count": 1, "trace": 0}, {"countfuncs": 1}, {"countcallers": 1}):
        tracer = trace.Trace(**options)
        tracer.runfunc(case)
        found = tracer.results()
        results.append({key: n for key, n in found.counts.items() if key[0] == FILE})
        results.append({_function(key) for key in found.calledfuncs if key[0] == FILE})
        results.append({tuple(map(_function, pair)) for pair in found.callers if {key[0] for key in pair} == {FILE}})
    assert results[0]
    with redirect_stdout(io.StringIO()) as text:
        trace.Trace(count=0, trace=1, ignoredirs=[sys.prefix, sys.base_prefix]).runfunc(case)
    return results, [line for line in text.getvalue().splitlines() if line.startswith("event_programs")]


class Stepper(bdb.Bdb):
    """A debugger that steps in, over, out or until by turns, and stops at breakpoints."""

    def __init__(self, commands):
        super().__init__()
        self.stops, self.commands, self.turn = [], commands, 0

    def stopped(self, what, frame, extra=None):
        if frame.f_code.co_filename == FILE:
            positions = [f.f_lineno for f, _ in self.get_stack(frame, None)[0] if f.f_code.co_filename == FILE]
            self.stops.append((what, frame.f_code.co_qualname, frame.f_lineno, positions, extra))
        command = self.commands[self.turn % len(self.commands)]
        self.turn += 1
        if command == "step" or frame.f_code.co_filename != FILE:
            self.set_step()
        elif command == "continue":
            self.set_continue()
        else:
            getattr(self, f"set_{command}")(frame)

    def user_call(self, frame, arguments):
        self.stopped("call", frame)

    def user_line(self, frame):
        self.stopped("line", frame)

    def user_return(self, frame, value):
        self.stopped("return", frame, type(value).__name__)

    def user_exception(self, frame, information):
        self.stopped("exception", frame, information[0].__name__)


def debugger(case):
    """Stops of a debugger with several ways of stepping, and with breakpoints on the first lines."""
    first = case.__code__.co_firstlineno
    stops = []
    ways = (["step"], ["next"], ["step", "next"], ["step", "step", "return"], ["step", "until"])
    for commands, breaks in [*((way, ()) for way in ways), (["continue"], range(first + 1, first + 30))]:
        stepper = Stepper(commands)
        for line in breaks:
            stepper.set_break(FILE, line)
        stepper.runcall(case)
        stepper.clear_all_breaks()
        stops.append(stepper.stops)
    assert stops[0]
    return stops


def _entry_name(code):
    return re.sub("0x[0-9a-f]+", "0x", code) if isinstance(code, str) else (code.co_firstlineno, code.co_qualname)


def profiler(case):
    """The call counts of `cProfile`, and who called whom."""
    profile = cProfile.Profile()
    profile.runcall(case)
    counts = Counter()
    for entry in profile.getstats():
        name = _entry_name(entry.code)
        counts[name] += entry.callcount - entry.reccallcount
        counts[name, "recursive"] += entry.reccallcount
        for call in entry.calls or ():
            counts[name, _entry_name(call.code)] += call.callcount
    assert counts
    return counts


def monitoring_coverage(case):
    """Coverage as with sys.monitoring: each line and branch once, then switched off."""
    seen = []

    def collect(event, code, *args):
        if code.co_filename == FILE:
            seen.append((event, code.co_qualname, args))
        return sys.monitoring.DISABLE

    with monitoring(sys.monitoring.COVERAGE_ID, ["PY_START", "LINE", "BRANCH", "PY_RETURN"], collect):
        case()
        case()
    return [(event, name, args if event in ("LINE", "BRANCH") else None) for event, name, args in seen]


TOOLS = [line_coverage, line_profile, standard_trace, debugger, profiler, *([monitoring_coverage] if NEW else [])]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("name", CASES)
def test_tool(tool, name):
    plain, again = load(MODULE)[name], load(AGAIN)[name]
    assert tool(plain) == tool(again)
