"""Native guard programs: the same checks as programs/program.py's text, run in C, with that text as reference."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any

from framesmith_guards.guard import Guard
from framesmith_guards.programs.native.lowering import lower
from framesmith_guards.programs.native.probing import extension, why_no_tensors
from framesmith_guards.programs.order import Plan
from framesmith_guards.programs.program import CheckProgram
from framesmith_guards.sources import Source


def why_not_native() -> str | None:
    """Return why guards cannot be checked natively here; None if they can."""
    return extension()[1]


@functools.cache
def _native_class() -> type[CheckProgram]:
    native, _ = extension()
    assert native is not None
    numbers = (native.OPCODES, native.SHAPE_OPERATORS, native.PROPERTIES)

    def _prepare(self: Any, walk: Plan) -> None:
        why_no_tensors()  # finds torch's layout, once
        self.load(lower(walk, (self.argnames, self.freevars), self.inputs, numbers))

    def extract(self: Any, args: tuple[object, ...], function: FunctionType) -> Any:
        return self.run_extract(args, function) if self.inputs else CheckProgram.extract(self, args, function)

    def __repr__(self: Any) -> str:
        return f"<native CheckProgram of {len(self.guards)} guards>"

    members = {
        "_prepare": _prepare,
        "__init__": CheckProgram.__init__,
        "__repr__": __repr__,
        "extract": extract,
        "__module__": __name__,
    }
    return type("NativeCheckProgram", (native.Program, CheckProgram), members)


def native_program(
    guards: Iterable[Guard], argnames: Sequence[str], freevars: Sequence[str], inputs: Sequence[Source]
) -> CheckProgram:
    """Return a CheckProgram whose calls run natively, and which has framesmith_frames' capsule."""
    return _native_class()(guards, argnames, freevars, inputs)
