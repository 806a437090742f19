"""Code decodes equally when fresh, specialised, traced or monitored, inside and afterwards; encoded code is clean."""

import sys
from contextlib import ExitStack

import pytest
from event_recording import (
    CASES,
    FILE,
    GLOBAL_ONLY,
    MODULE,
    NEW,
    bits,
    codes_of,
    event_names,
    load,
    monitoring,
    monitoring_events,
    run_traced,
    settrace_events,
)

from framesmith_bytecode import Instr, Label, decode, encode
from framesmith_bytecode.corpus.compare import difference
from framesmith_bytecode.cpython.opcodes import CACHES, NAMES
from framesmith_bytecode.nested import walk_code

pytestmark = pytest.mark.usefixtures("no_collection")

needs_monitoring = pytest.mark.skipif(not NEW, reason="sys.monitoring is new in 3.12")
LOCAL = [name for name in event_names() if name not in GLOBAL_ONLY] if NEW else []
EVENT_SETS = [*([name] for name in LOCAL), ["LINE", "INSTRUCTION"], ["CALL", "LINE"], LOCAL]
IDS = ["+".join(names) if len(names) < 3 else "all" for names in EVENT_SETS]


def numbered(bytecode):
    """The instructions with their operands and positions, labels by number."""
    numbers = {}
    for item in bytecode.instructions:
        if isinstance(item, Label):
            numbers[item] = f"label {len(numbers)}"
    return [
        numbers[item]
        if isinstance(item, Label)
        else (item.op, numbers[item.arg] if isinstance(item.arg, Label) else item.arg, item.position)
        for item in bytecode.instructions
    ]


class Fresh:
    """Code objects decoded before they have run, and encoded again."""

    def __init__(self, module=MODULE):
        self.readings = {}
        for code in walk_code(module):
            reading = decode(code.replace())
            self.readings[key(code)] = reading, numbered(reading), encode(reading), pure(encode(reading))

    def check(self, code):
        """Compare with the current decoding, and check that encoded code is not instrumented."""
        reading = decode(code)
        fresh, instructions, encoded, adaptive = self.readings[key(code)]
        assert difference(fresh, reading) is None
        assert numbered(reading) == instructions
        again = encode(reading)
        assert again == encoded
        assert hash(again) == hash(encoded)
        assert again.co_code == encoded.co_code
        assert again.co_linetable == encoded.co_linetable
        assert again.co_exceptiontable == encoded.co_exceptiontable
        assert pure(again) == adaptive


def pure(code):
    """The adaptive form of code that has not run, which may contain the compiler's opcodes and fused ones only."""
    instructions = code.co_code[::2]
    unit = 0
    while unit < len(instructions):
        name = NAMES[instructions[unit]]  # an instrumented or specialised opcode has no name
        unit += 1 + CACHES.get(name, 0)
    return code._co_code_adaptive


def key(code):
    return code.co_qualname, code.co_firstlineno, code.co_code if code.co_name.startswith("<") else None


FRESH = Fresh()


def check_all(case):
    for code in codes_of(case):
        FRESH.check(code)


def test_every_case_is_read():
    assert len(FRESH.readings) == len(list(walk_code(MODULE))) > 80


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_specialised(name):
    case = load(MODULE)[name]
    for _ in range(30):
        case()
    check_all(case)
    settrace_events(case)
    check_all(case)


def test_specialised_much():
    cases = load(MODULE)
    point = cases["case_specialised"]
    for _ in range(100):
        point()
    fresh = point.__code__.replace()
    if fresh._co_code_adaptive == point.__code__._co_code_adaptive:
        pytest.fail("the interpreter did not specialise, so this shows nothing")
    check_all(point)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("warm", [0, 20])
@pytest.mark.parametrize("name", CASES)
def test_while_traced(name, warm):
    """The tracer itself decodes the traced code at every new event and code object."""
    case = load(MODULE)[name]
    for _ in range(warm):
        case()
    seen = set()

    def trace(frame, event, value):
        if frame.f_code.co_filename != FILE:
            return None
        frame.f_trace_opcodes = True
        key = frame.f_code, event
        if key not in seen:
            seen.add(key)
            FRESH.check(frame.f_code)
        return trace

    run_traced(case, trace, opcodes=True)
    assert len(seen) >= 4
    check_all(case)


@needs_monitoring
@pytest.mark.parametrize("names", EVENT_SETS, ids=IDS)
@pytest.mark.parametrize("warm", [0, 20])
def test_while_monitored(names, warm):
    """Before, in callbacks, after running, and after the tool is freed; tools for single code objects."""
    cases = load(MODULE)
    for case in list(cases.values()) * warm:
        case()
    codes = codes_of(cases[CASES[0]])
    seen = set()

    def answer(event, code, *args):
        if code.co_filename == FILE and (code, event) not in seen:
            seen.add((code, event))
            FRESH.check(code)

    with monitoring(1, names, answer, codes):
        check_all(cases[CASES[0]])
        for case in cases.values():
            case()
        check_all(cases[CASES[0]])
    check_all(cases[CASES[0]])
    assert seen


@needs_monitoring
@pytest.mark.parametrize("warm", [0, 20])
def test_while_monitored_everywhere_by_two_tools_and_a_tracer(warm):
    cases = load(MODULE)
    for case in list(cases.values()) * warm:
        case()
    with ExitStack() as stack:
        for tool, names in ((1, event_names()), (4, ["LINE", "INSTRUCTION"])):
            stack.enter_context(monitoring(tool, names, lambda *_: None))
        for case in cases.values():
            settrace_events(case)
        for code in codes_of(cases[CASES[0]])[::16]:  # few, as the reading itself is monitored
            FRESH.check(code)
        sys.monitoring.set_events(1, 0)
        sys.monitoring.set_events(4, 0)
        check_all(cases[CASES[0]])  # instrumented still: that ends when code runs again
    check_all(cases[CASES[0]])


@needs_monitoring
def test_events_changed_while_code_runs():
    """A running function whose events come and go, and are disabled, in all combinations of two steps."""
    tools = sys.monitoring
    for first in EVENT_SETS:
        for second in (["LINE"], ["INSTRUCTION"], LOCAL, []):
            steps = iter((first, second, ["PY_START"]))
            case = load(MODULE)["case_for_and_while"]

            def change(event, code, *args, steps=steps):
                step = next(steps, None)
                if step is not None:
                    tools.set_local_events(2, code, bits(step))
                    FRESH.check(code)
                return tools.DISABLE

            with monitoring(2, LOCAL, change, [case.__code__]):
                case()
                FRESH.check(case.__code__)
            FRESH.check(case.__code__)


FROM_INSIDE = """
def inside(read, n):
    out = []
    for i in range(n):
        out.append(read())
        with open_nothing() as x:
            try:
                out.append(read()) if i else [read() for _ in range(2)]
            except KeyError:
                raise
    return out
"""


@pytest.mark.parametrize("warm", [0, 100])
def test_from_inside(warm):
    module = compile(FROM_INSIDE, "inside", "exec")
    namespace = {"open_nothing": ExitStack}
    exec(module, namespace)
    inside = namespace["inside"]
    fresh = Fresh(module)
    for _ in range(warm):
        inside(int, 3)

    def read():
        fresh.check(sys._getframe(1).f_code)

    inside(read, 3)
    settrace_here(lambda: inside(read, 3))
    if not NEW:
        return
    for names in EVENT_SETS:
        with monitoring(1, names, lambda *_: None, [inside.__code__]):
            inside(read, 1)
        inside(read, 1)
    with monitoring(1, ["LINE", "INSTRUCTION"], lambda *_: None):
        inside(read, 1)
        settrace_here(lambda: inside(read, 1))
    inside(read, 1)


def settrace_here(run):
    def trace(frame, event, value):
        frame.f_trace_opcodes = True
        return trace if frame.f_code.co_filename == "inside" else None

    run_traced(run, trace, opcodes=True)


@needs_monitoring
@pytest.mark.parametrize("names", EVENT_SETS, ids=IDS)
def test_code_decoded_while_monitored_runs_equally(names):
    """A copy made of instrumented code is not instrumented, and tools see the same of it."""
    for name in CASES[:8]:
        plain, other = load(MODULE)[name], load(MODULE)[name]
        with monitoring(1, names, lambda *_: None, [other.__code__]):
            other()
            other.__code__ = encode(decode(other.__code__))
            assert sys.monitoring.get_local_events(1, other.__code__) == 0
            other()
        everything = {1: event_names()}
        assert monitoring_events(other, everything) == monitoring_events(plain, everything)


def test_a_wrong_decoding_is_reported():
    case = load(MODULE)["case_for_and_while"]
    check_all(case)
    reading = decode(case.__code__)
    at = next(i for i, item in enumerate(reading.instructions) if isinstance(item, Instr) and item.op == "LOAD_CONST")
    reading.instructions[at] = reading.instructions[at].replace(arg=77)
    with pytest.raises(AssertionError):
        FRESH.check(encode(reading))
