"""A guard set compiled: a callable check with its text, its inputs' extraction and its explanations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from framesmith_guards.errors import GuardError
from framesmith_guards.guard import Guard
from framesmith_guards.order import plan
from framesmith_guards.refs import Ref
from framesmith_guards.render import ProgramNames, render
from framesmith_guards.sources import Source

Check = Callable[[tuple[object, ...], FunctionType], bool]
Extract = Callable[[tuple[object, ...], FunctionType], tuple[object, ...] | None]


class CheckProgram:
    """Says whether all guards hold for a call: `program(args, function)`, args in the order of `argnames`.

    `text` is the same check as readable Python. Guarded objects are held weakly: once one is gone, `dead` says
    which, and the program misses for ever.
    """

    def __init__(
        self, guards: Iterable[Guard], argnames: Sequence[str], freevars: Sequence[str], inputs: Sequence[Source]
    ) -> None:
        self.argnames = tuple(argnames)
        self.freevars = tuple(freevars)
        self.inputs = tuple(inputs)
        self.plan = walk = plan(guards, inputs)
        self.guards: tuple[Guard, ...] = tuple(walk.guards)
        self._dead: list[str] = []
        self.text, self.check = self._compile("check", render(plan(self.guards), names := self._names()), names)
        self._watches = [self._watch(ref) for ref in names.watched]
        self.extract_text: str | None = None
        self._extract: Extract | None = None
        if inputs:
            names = self._names()
            self.extract_text, self._extract = self._compile("extract", render(walk, names, inputs), names)

    def _watch(self, ref: Ref) -> weakref.ref[object] | None:
        text, dead, owner = ref.text, self._dead, weakref.ref(self)

        def died(_: object) -> None:
            dead.append(text)
            program = owner()
            if program is not None:
                program.kill()

        return ref.on_death(died)

    def kill(self) -> None:
        """Told that a guarded object is gone; the text looks for itself."""

    def _names(self) -> ProgramNames:
        return ProgramNames(self.argnames, self.freevars)

    def _compile(self, entry: str, text: str, names: ProgramNames) -> tuple[str, Any]:
        namespace = names.namespace
        namespace["dead"] = self._dead
        exec(compile(text, "<guards>", "exec"), namespace)
        return text, namespace[entry]

    def __call__(self, args: tuple[object, ...], function: FunctionType) -> bool:
        """Whether every guard holds for a call of `function` with `args`."""
        return self.check(args, function) is True

    def extract(self, args: tuple[object, ...], function: FunctionType) -> tuple[object, ...] | None:
        """The values of `inputs` if every guard holds, else None. GuardError if compiled without inputs."""
        if self._extract is None:
            raise GuardError("this program was compiled without inputs to extract")
        return self._extract(args, function)

    @property
    def dead(self) -> str | None:
        """What guarded object is gone, so that the program can never hold again; None while all live."""
        return self._dead[0] if self._dead else None

    def misses(self, args: tuple[object, ...], function: FunctionType) -> list[str]:
        """Every guard that does not hold, in words, in checking order; below a miss nothing is evaluated."""
        if self._dead:
            return [f"{self._dead[0]} is gone"]
        by_name = dict(zip(self.argnames, args, strict=False))
        found: list[str] = []
        missed: set[Source] = set()
        for guard in self.guards:
            paths = (step for source in (guard.source, *guard.operands) for step in source.chain())
            if any(step in missed for step in paths if step is not guard.source):
                continue
            reason = guard.explain(by_name, function)
            if reason is not None:
                found.append(reason)
                missed.add(guard.source)
        return found

    def explain(self, args: tuple[object, ...], function: FunctionType) -> str | None:
        """The first guard that does not hold, in words: what was expected, what was found. None if all hold."""
        return next(iter(self.misses(args, function)), None)

    def __repr__(self) -> str:
        return f"<CheckProgram of {len(self.guards)} guards>"


def explain_nearest(
    programs: Iterable[CheckProgram], args: tuple[object, ...], function: FunctionType
) -> list[tuple[CheckProgram, list[str]]]:
    """Why each program misses, the nearest (fewest misses) first."""
    return sorted(((program, program.misses(args, function)) for program in programs), key=lambda row: len(row[1]))
