"""Recorders of every event of settrace, setprofile and sys.monitoring."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType

from framesmith_bytecode.nested import map_code, walk_code

FILE = str(Path(__file__).with_name("event_programs.py"))
TYPED = """
def case_type_parameters():
    def f[T: (int, str), *U, **V](a: T, *b: *U) -> V:
        return a
    class A[T: int]:
        x: T
        def get[S](self, s: S) -> T: return s
    type X[T] = list[T]
    return f(1), A[int]().get(2), X.__value__, [p.__name__ for p in A.__type_params__]
"""
NEW = hasattr(sys, "monitoring")  # and with it type parameters


def _module() -> CodeType:
    text = Path(FILE).read_text(encoding="utf-8")
    return compile(text + TYPED if NEW else text, FILE, "exec")


MODULE = _module()
AGAIN = map_code(MODULE)


def load(module: CodeType) -> dict[str, Callable[[], object]]:
    """The cases of a fresh copy of a module's code: none of it has run."""
    copies: dict[int, CodeType] = {}

    def copy(code: CodeType) -> CodeType:
        consts = tuple(copy(value) if isinstance(value, CodeType) else value for value in code.co_consts)
        return copies.setdefault(id(code), code.replace(co_consts=consts))

    namespace: dict[str, object] = {"__name__": "event_programs", "__file__": FILE}
    exec(copy(module), namespace)
    return {name: value for name, value in namespace.items() if name.startswith("case_")}


CASES = sorted(load(MODULE))


def codes_of(case: Callable[[], object]) -> list[CodeType]:
    """A case's code objects, and those of everything in its module."""
    globals_ = case.__globals__
    found: dict[int, CodeType] = {}
    for value in globals_.values():
        code = getattr(value, "__code__", None)
        members = vars(value).values() if isinstance(value, type) else ()
        for outer in [code, *(getattr(member, "__code__", None) for member in members)]:
            if outer is not None and outer.co_filename == FILE:
                found.update({id(inner): inner for inner in walk_code(outer)})
    return list(found.values())


def _text(error: object) -> str:
    return re.sub("0x[0-9a-f]+", "0x", str(error))


def shown(value: object) -> object:
    """A value of an event, comparable between two copies of a program."""
    if isinstance(value, CodeType):
        return value.co_qualname, value.co_firstlineno
    if isinstance(value, BaseException):
        return type(value).__name__, _text(value)
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if value is None or isinstance(value, (int, str, float)):
        return value
    if isinstance(value, type):
        return value.__qualname__
    return type(value).__name__, getattr(value, "__qualname__", None)


def _traced(value: object) -> object:
    return value[0].__name__, _text(value[1]), value[2].tb_lineno if value[2] else None


def run_traced(run: Callable[[], object], trace: Callable[..., object], *, opcodes: bool = False) -> None:
    """Run with a trace function of `sys.settrace`."""
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = opcodes  # 3.12 turns on events of opcodes when a tracer is set after this
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)


def settrace_events(run: Callable[[], object], *, opcodes: bool = True, lines: bool = True) -> list[object]:
    """Every call, line, opcode, return and exception event, with line and instruction."""
    seen: list[object] = []

    def trace(frame, event, value):
        if frame.f_code.co_filename != FILE:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = opcodes, lines
        what = _traced(value) if event == "exception" else shown(value)
        seen.append((event, frame.f_code.co_qualname, frame.f_lineno, frame.f_lasti, what))
        return trace

    run_traced(run, trace, opcodes=opcodes)
    return seen


def setprofile_events(run: Callable[[], object]) -> list[object]:
    """Every call, return, c_call, c_return and c_exception event."""
    seen: list[object] = []

    def profile(frame, event, value):
        if frame.f_code.co_filename == FILE:
            seen.append((event, frame.f_code.co_qualname, frame.f_lineno, frame.f_lasti, shown(value)))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return seen


def event_names() -> list[str]:
    """The names of all events of sys.monitoring here."""
    return [name for name, bit in vars(sys.monitoring.events).items() if bit]


# These cannot be set for one code object; a tool gets C_RETURN and C_RAISE with CALL.
GLOBAL_ONLY = {"PY_UNWIND", "PY_THROW", "RAISE", "RERAISE", "EXCEPTION_HANDLED", "C_RETURN", "C_RAISE"}


def bits(names) -> int:
    """The set of events that has these names."""
    total = 0
    for name in names:
        total |= getattr(sys.monitoring.events, name)
    return total


@contextmanager
def monitoring(tool: int, names: list[str], answer: Callable[..., object], codes=None) -> Iterator[None]:
    """A tool with events set for everything, or for code objects only; `answer` gets the event's name and arguments."""
    tools = sys.monitoring
    tools.use_tool_id(tool, f"events {tool}")
    try:
        for name in names:
            tools.register_callback(tool, getattr(tools.events, name), lambda *args, name=name: answer(name, *args))
        if codes is None:
            tools.set_events(tool, bits(names))
        else:
            for code in codes:
                tools.set_local_events(tool, code, bits(set(names) - GLOBAL_ONLY))
        yield
    finally:
        tools.set_events(tool, 0)
        for code in codes or ():
            tools.set_local_events(tool, code, 0)
        for name in names:
            tools.register_callback(tool, getattr(tools.events, name), None)
        tools.free_tool_id(tool)
        tools.restart_events()


def monitoring_events(
    run: Callable[[], object], tools: dict[int, list[str]], *, codes=None, once: tuple[str, ...] = ()
) -> list[object]:
    """Every event of some tools, in order; those named in `once` are disabled where they were seen."""
    seen: list[object] = []

    def answer_for(tool):
        def answer(name, code, *args):
            if code.co_filename != FILE:
                return None
            seen.append((tool, name, shown(code), shown(args)))
            return sys.monitoring.DISABLE if name in once else None

        return answer

    with ExitStack() as stack:
        for tool, names in tools.items():
            stack.enter_context(monitoring(tool, names, answer_for(tool), codes))
        run()
    return seen
