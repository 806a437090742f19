"""Tools see the same events of re-encoded code, one by one; instrumented and specialised code reads like fresh code."""

from types import FunctionType

import pytest
from event_recording import (
    AGAIN,
    CASES,
    GLOBAL_ONLY,
    MODULE,
    NEW,
    codes_of,
    event_names,
    load,
    monitoring_events,
    setprofile_events,
    settrace_events,
)
from split_definitions import PROGRAMS

from framesmith_bytecode import Instr
from framesmith_bytecode.nested import map_code, walk_code

pytestmark = pytest.mark.usefixtures("no_collection")

needs_monitoring = pytest.mark.skipif(not NEW, reason="sys.monitoring is new in 3.12")
NAMES = event_names() if NEW else []
JUMPS = {"BRANCH", "JUMP", "STOP_ITERATION"}
# Tools, by number, with their events: all, few, several at once.
TOOLS = {
    "all": {1: NAMES},
    "lines": {1: ["LINE"]},
    "instructions": {1: ["INSTRUCTION"]},
    "lines and instructions": {1: ["LINE", "INSTRUCTION"]},
    "calls": {1: ["CALL", "C_RETURN", "C_RAISE"]},
    "exceptions": {1: sorted(GLOBAL_ONLY - {"C_RETURN", "C_RAISE"})},
    "jumps": {1: sorted(JUMPS)},
    "two tools": {1: ["LINE", "CALL", "RAISE"], 3: ["LINE", "INSTRUCTION", "BRANCH", "PY_RETURN"]},
    "two tools with all": {0: NAMES, 4: NAMES},
}


def both(name, record, warm=0):
    """The events of a case of the module as compiled, and of the module re-encoded: first and second run of each."""
    sides = []
    for module in (MODULE, AGAIN):
        case = load(module)[name]
        for _ in range(warm):
            case()
        sides.append([record(case), record(case)])
    assert sides[0] == sides[1]
    assert sides[0][0]
    return sides[0]


def test_the_programs_bytes_are_equal():
    """So that `f_lasti` may be compared throughout."""
    for one, other in zip(walk_code(MODULE), walk_code(AGAIN), strict=True):
        assert one.co_code == other.co_code
        assert list(one.co_positions()) == list(other.co_positions())
    assert len(list(walk_code(AGAIN))) > 80


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_settrace(name):
    first, second = both(name, settrace_events)
    assert {"call", "line", "opcode", "return"} <= {event[0] for event in first}
    assert [event[:3] for event in first] == [event[:3] for event in second]
    both(name, settrace_events, warm=20)
    both(name, lambda run: settrace_events(run, opcodes=False))
    both(name, lambda run: settrace_events(run, lines=False))


@pytest.mark.parametrize("name", CASES)
def test_setprofile(name):
    both(name, setprofile_events)
    both(name, setprofile_events, warm=20)


@needs_monitoring
@pytest.mark.parametrize("name", CASES)
def test_monitoring(name):
    for tools in TOOLS.values():
        both_or_none(name, lambda run, tools=tools: monitoring_events(run, tools))
    both(name, lambda run: monitoring_events(run, TOOLS["all"]), warm=20)


def both_or_none(name, record):
    """The same where a case may have no events."""
    sides = [record(load(module)[name]) for module in (MODULE, AGAIN)]
    assert sides[0] == sides[1]


@needs_monitoring
@pytest.mark.parametrize("name", CASES)
def test_monitoring_of_single_code_objects(name):
    for key in ("all", "lines and instructions", "two tools"):
        tools = {tool: [n for n in names if n not in GLOBAL_ONLY] for tool, names in TOOLS[key].items()}
        both(name, lambda run, tools=tools: monitoring_events(run, tools, codes=codes_of(run)))


@needs_monitoring
@pytest.mark.parametrize("name", CASES)
def test_events_disabled_where_seen(name):
    once = ("LINE", "INSTRUCTION", "BRANCH", "JUMP", "PY_START", "PY_RETURN", "CALL")
    seen, _ = both(name, lambda run: monitoring_events(run, TOOLS["all"], once=once))
    assert {event[1] for event in seen} >= {"LINE", "INSTRUCTION", "PY_START"}
    both(name, lambda run: monitoring_events(run, {1: ["LINE"], 2: ["LINE", "BRANCH"]}, once=("LINE",)))


def test_a_recorder_reports_a_moved_line():
    def move(bytecode):
        for index, item in enumerate(bytecode.instructions):
            if bytecode.name == "case_for_and_while" and isinstance(item, Instr) and item.op == "RETURN_VALUE":
                moved = item.position._replace(lineno=item.position.lineno + 1, end_lineno=item.position.end_lineno + 1)
                bytecode.instructions[index] = item.replace(position=moved)

    moved = load(map_code(MODULE, move))["case_for_and_while"]
    plain = load(MODULE)["case_for_and_while"]
    assert settrace_events(plain) != settrace_events(moved)
    if NEW:
        assert monitoring_events(plain, TOOLS["lines"]) != monitoring_events(moved, TOOLS["lines"])


def run_quietly(function, arguments):
    try:
        function(*arguments)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_other_tests(name, monkeypatch):
    function, runs = PROGRAMS[name]
    monkeypatch.setattr("event_recording.FILE", function.__code__.co_filename)
    for run in runs:
        sides = []
        for code in (function.__code__.replace(), map_code(function.__code__)):
            other = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
            other.__kwdefaults__ = function.__kwdefaults__

            def call(other=other, run=run):
                run_quietly(other, run())

            side = [settrace_events(call), setprofile_events(call)]
            if NEW:
                side.append(monitoring_events(call, TOOLS["all"]))
            assert all(side)
            sides.append(side)
        assert sides[0] == sides[1]
