"""A compiled guard set: a callable check with its text, the extraction of inputs, and explanations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any

from framesmith_guards.errors import GuardError
from framesmith_guards.guard import Guard
from framesmith_guards.programs.order import Plan, plan
from framesmith_guards.programs.render import ProgramNames, render
from framesmith_guards.sources import Source
from framesmith_guards.values.refs import Ref
from framesmith_guards.values.tensors import TensorSpec

Check = Callable[[tuple[object, ...], FunctionType], bool]
Extract = Callable[[tuple[object, ...], FunctionType], tuple[object, ...] | None]


class CheckProgram:
    """Whether all guards hold for a call: `program(args, function)`, args in the order of `argnames`.

    `text` is the same check as readable Python. Guarded objects are held weakly: once one is gone, `dead` says which,
    and the program misses for ever.
    """

    def __init__(
        self, guards: Iterable[Guard], argnames: Sequence[str], freevars: Sequence[str], inputs: Sequence[Source]
    ) -> None:
        self.argnames = tuple(argnames)
        self.freevars = tuple(freevars)
        self.inputs = tuple(inputs)
        walk = plan(guards, inputs)
        self.guards: tuple[Guard, ...] = tuple(walk.guards)
        self._dead: list[str] = []
        self._watches = [self._watch(ref) for ref in _identities(self.guards)]
        names = self._names()
        for step in walk.steps:
            if not isinstance(step, Guard) and step.source.base is None:
                step.source.expression("", names)  # refuses a name that the function does not have
        self._prepare(walk)

    def _prepare(self, walk: Plan) -> None:
        """Compile the text now, so that its errors are raised here."""
        _ = self.check

    @cached_property
    def text(self) -> str:
        """The check as Python: `check(args, function) -> bool`."""
        return render(plan(self.guards), self._names())

    @cached_property
    def check(self) -> Check:
        names = self._names()
        checked: Check = self._compile("check", render(plan(self.guards), names), names)
        return checked

    @cached_property
    def _extract(self) -> Extract:
        names = self._names()
        extract: Extract = self._compile("extract", render(plan(self.guards, self.inputs), names, self.inputs), names)
        return extract

    def _names(self) -> ProgramNames:
        return ProgramNames(self.argnames, self.freevars)

    def _compile(self, entry: str, text: str, names: ProgramNames) -> Any:
        namespace = names.namespace
        namespace["dead"] = self._dead
        exec(compile(text, "<guards>", "exec"), namespace)
        return namespace[entry]

    def _watch(self, ref: Ref) -> weakref.ref[object] | None:
        text, dead, owner = ref.text, self._dead, weakref.ref(self)

        def died(_: object) -> None:
            dead.append(text)
            program = owner()
            if program is not None:
                program.kill()

        return ref.on_death(died)

    def kill(self) -> None:
        """Called when a guarded object is gone; the text checks by itself."""

    def __call__(self, args: tuple[object, ...], function: FunctionType) -> bool:
        return self.check(args, function) is True

    def extract(self, args: tuple[object, ...], function: FunctionType) -> tuple[object, ...] | None:
        """Return the values of `inputs` if every guard holds, else None. GuardError if compiled without inputs."""
        if not self.inputs:
            raise GuardError("this program was compiled without inputs to extract")
        return self._extract(args, function)

    @property
    def dead(self) -> str | None:
        """Return the guarded object that is gone, so that the program never holds again; None while all live."""
        return self._dead[0] if self._dead else None

    def misses(self, args: tuple[object, ...], function: FunctionType) -> list[str]:
        """Return every guard that does not hold, in words, in checking order; below a miss nothing is evaluated."""
        if self._dead:
            return [f"{self._dead[0]} is gone"]
        return [reason for _, reason in self.missed(args, function)]

    def missed(self, args: tuple[object, ...], function: FunctionType) -> list[tuple[Guard, str]]:
        """Return (guard, reason) of every guard that does not hold, in checking order; none below a miss."""
        return [(guard, reason) for guard, reason, _ in self.verdicts(args, function) if reason is not None]

    def verdicts(self, args: tuple[object, ...], function: FunctionType) -> Iterator[tuple[Guard, str | None, bool]]:
        """Return (guard, why it does not hold or None, whether a miss above it hides it) in checking order."""
        by_name = dict(zip(self.argnames, args, strict=False))
        missed: set[Source] = set()
        for guard in self.guards:
            paths = (step for source in (guard.source, *guard.operands) for step in source.chain())
            hidden = any(step in missed for step in paths if step is not guard.source)
            reason = None if hidden else guard.explain(by_name, function)
            if reason is not None:
                missed.add(guard.source)
            yield guard, reason, hidden

    def explain(self, args: tuple[object, ...], function: FunctionType) -> str | None:
        """Return the first guard that does not hold, with the expected and the found value. None if all hold."""
        return next(iter(self.misses(args, function)), None)

    def __repr__(self) -> str:
        return f"<CheckProgram of {len(self.guards)} guards>"


def _identities(guards: Iterable[Guard]) -> Iterator[Ref]:
    """Return the handles by whose addresses the guards compare."""
    seen: set[int] = set()
    for guard in guards:
        expected = guard.expected
        ref = expected.pytype if isinstance(expected, TensorSpec) else expected
        if isinstance(ref, Ref) and ref.weak and ref.address not in seen:
            seen.add(ref.address)
            yield ref
