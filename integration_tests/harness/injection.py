"""Failures planted inside the compiler: any function of its packages raises, at any of its calls while compiling."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from framesmith.session import Session
from framesmith_aot.runtime.backward import BackwardPass
from framesmith_aten.recording import OperatorLog
from framesmith_dynamo.graph.builder import GraphBuilder
from framesmith_guards.programs import explaining

PACKAGES = ("framesmith_dynamo", "framesmith_guards", "framesmith_bytecode", "framesmith_sideeffects",
            "framesmith_aten", "framesmith_aot", "framesmith_backends", "framesmith_frames", "framesmith")  # fmt: skip
#: Interpreted as a part of programs; functions that report failures; functions that the user calls.
LEFT_OUT = ("framesmith_dynamo.polyfills", "framesmith.reports.failures", "framesmith.reports.stats", "framesmith.api")
#: Compiling begins in these: for a call, for a backward pass.
BEGINNINGS = (Session.__call__, BackwardPass._compile)
#: Run operations on fakes: what these raise is what the operation raises.
OPERATIONS = (GraphBuilder.run, OperatorLog.dispatch, OperatorLog._called)
#: Failures in these are a part of the text that explains a miss.
TEXTS = (explaining.explain,)

Name = tuple[str, str, int]


class Planted(Exception):
    """The failure."""


@dataclass(frozen=True)
class Place:
    """The `nth` call of a function of the compiler's, counted while it compiles."""

    name: Name
    nth: int

    def __str__(self) -> str:
        return f"call {self.nth} of {'.'.join(self.name[:2])}"


def functions_in(obj: object) -> Iterator[types.FunctionType]:
    """The Python functions behind an entry of a module or class: wrapped ones too."""
    if isinstance(obj, (staticmethod, classmethod)):
        yield from functions_in(obj.__func__)
    elif isinstance(obj, property):
        for part in (obj.fget, obj.fset, obj.fdel):
            yield from functions_in(part)
    elif isinstance(obj, functools.cached_property):
        yield from functions_in(obj.func)
    elif isinstance(obj, dict):
        for value in obj.values():
            if isinstance(value, types.FunctionType):
                yield from functions_in(value)
    elif callable(obj) and not isinstance(obj, type):
        if isinstance(obj, types.FunctionType):
            yield obj
        yield from functions_in(getattr(obj, "__wrapped__", None))


def belongs(module: str) -> bool:
    """Whether a module is one of the compiler's in which failures are planted."""
    return module.split(".")[0] in PACKAGES and not module.startswith(LEFT_OUT)


@functools.cache
def functions() -> dict[Name, types.FunctionType]:
    """Every function of the compiler's that a module or class of it holds."""
    found: dict[Name, types.FunctionType] = {}
    for name, module in list(sys.modules.items()):
        if not belongs(name):
            continue
        entries = list(vars(module).values())
        for cls in [entry for entry in entries if isinstance(entry, type) and entry.__module__ == name]:
            entries += vars(cls).values()
        for function in (function for entry in entries for function in functions_in(entry)):
            if belongs(function.__module__) and function not in (*BEGINNINGS, *OPERATIONS):
                code = function.__code__
                found.setdefault((function.__module__, function.__qualname__, code.co_firstlineno), function)
    return found


class Scope:
    """The state of a thread: compiling or not. `beginnings` counts compilations begun; up to `last` ones count."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.beginnings = self.depth = self.texts = 0

    def enter(self, *, beginning: bool) -> None:
        self.beginnings += beginning
        self.depth += beginning
        self.texts += not beginning

    def leave(self, *, beginning: bool) -> None:
        self.depth -= beginning
        self.texts -= not beginning

    def counts(self) -> bool:
        return self.depth > 0 and not self.texts and (self.last is None or self.beginnings <= self.last)


def calls_in(run: Callable[[], object], last: int | None = None) -> dict[Name, int]:
    """Count the calls of each function of the compiler while `run` compiles, up to compilation number `last`."""
    scope = Scope(last)
    marks = {function.__code__: True for function in BEGINNINGS} | {function.__code__: False for function in TEXTS}
    calls: Counter[types.CodeType] = Counter()

    def profile(frame: types.FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call":
            if code in marks:
                scope.enter(beginning=marks[code])
            elif scope.counts():
                calls[code] += 1
        elif event == "return" and code in marks:
            scope.leave(beginning=marks[code])

    names = {function.__code__: name for name, function in functions().items()}
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {names[code]: count for code, count in calls.items() if code in names}


#: The constant in a template's code that stands for the function called there.
STANDS_FOR = "the function"
_TEMPLATE = compile(f"def f(*args, **kwargs): return {STANDS_FOR!r}.__call__(*args, **kwargs)", "", "exec").co_consts[0]


@contextlib.contextmanager
def replaced(
    function: types.FunctionType, make: Callable[[types.FunctionType], Callable[..., object]]
) -> Iterator[None]:
    """Have every call of a function, whoever holds it, go to `make(a function that does what it did)`."""
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    original = types.FunctionType(code, function.__globals__, code.co_name, defaults, function.__closure__)
    original.__kwdefaults__ = keywords
    instead = make(original)

    def calling(*args: object, **kwargs: object) -> object:
        return instead(*args, **kwargs)

    consts = tuple(calling if const == STANDS_FOR else const for const in _TEMPLATE.co_consts)
    named = {"co_name": code.co_name, "co_qualname": code.co_qualname, "co_freevars": code.co_freevars}
    function.__code__ = _TEMPLATE.replace(co_consts=consts, **named)  # type: ignore[arg-type]
    function.__defaults__ = function.__kwdefaults__ = None  # type: ignore[assignment]
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords


@dataclass
class Plant:
    """The effects of a planted failure."""

    raised: int = 0
    calls: int = 0


@contextlib.contextmanager
def planted(place: Place, error: type[BaseException], last: int | None = None) -> Iterator[Plant]:
    """Raise an `error` at that call of a function, once."""
    scope, plant = Scope(last), Plant()

    def marking(original: types.FunctionType, beginning: bool) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            scope.enter(beginning=beginning)
            try:
                return original(*args, **kwargs)
            finally:
                scope.leave(beginning=beginning)

        return run

    def raising(original: types.FunctionType) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            if scope.counts() and not plant.raised:
                plant.calls += 1
                if plant.calls == place.nth:
                    plant.raised += 1
                    raise error("planted")
            return original(*args, **kwargs)

        return run

    with contextlib.ExitStack() as stack:
        for function in BEGINNINGS:
            stack.enter_context(replaced(function, functools.partial(marking, beginning=True)))
        for function in TEXTS:
            stack.enter_context(replaced(function, functools.partial(marking, beginning=False)))
        stack.enter_context(replaced(functions()[place.name], raising))
        yield plant
