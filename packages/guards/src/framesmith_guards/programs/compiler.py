"""`compile_guards`: from guards to a program, native where possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framesmith_guards.errors import GuardError
from framesmith_guards.guard import Guard
from framesmith_guards.programs.native.program import native_program, why_not_native
from framesmith_guards.programs.program import CheckProgram
from framesmith_guards.sources import Source


def compile_guards(
    guards: Iterable[Guard],
    argnames: Sequence[str],
    freevars: Sequence[str] = (),
    *,
    inputs: Sequence[Source] = (),
    native: bool | None = None,
) -> CheckProgram:
    """Return one check for all `guards` of a function with these arguments and free variables, in their code's order.

    `inputs` are sources whose values the same walk collects (`program.extract`). `native` says whether the check runs
    in C: None where it can, True or an error says why not, False never. GuardError for a guard on an argument or free
    variable that is not there, or on an object that is gone.
    """
    guards = tuple(guards)
    reason = "native=False was asked for" if native is False else why_not_native()
    if native and reason is not None:
        raise GuardError(f"cannot compile guards natively: {reason}")
    make = CheckProgram if reason is not None else native_program
    try:
        return make(guards, argnames, freevars, inputs)
    except ReferenceError as error:
        raise GuardError(f"cannot compile guards: {error}") from None
