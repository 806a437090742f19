"""The text of a check: one readable Python function that says whether all guards hold for a call."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from typing import Any, Final

from framesmith_guards.errors import GuardError, nearest
from framesmith_guards.guard import Guard
from framesmith_guards.kinds.shapes import HELPERS
from framesmith_guards.kinds.state import BY_KIND
from framesmith_guards.programs.order import Plan, Step
from framesmith_guards.sources import AttrSource, ItemSource, Source, TensorPropertySource
from framesmith_guards.torch_adapter import unstable
from framesmith_guards.values.refs import Ref
from framesmith_guards.values.tensors import PLAIN_TYPES, TensorSpec

_LITERALS: Final = frozenset({int, str, bytes, bool, type(None)})
_READING_STEPS: Final = (AttrSource, ItemSource, TensorPropertySource)
"""Sources whose step uses Python's protocols on a value, which may be a tensor."""


def is_literal(value: object) -> bool:
    """Whether the value's repr is Python text for exactly that value."""
    return type(value) in _LITERALS or (type(value) is tuple and all(map(is_literal, value)))


_RESERVED: Final = frozenset({"args", "function", "check", "extract", "dead", "STATE", *dir(builtins), *HELPERS})


class ProgramNames:
    """The names of a check's text: arguments, free variables, variables of sources, and its namespace."""

    def __init__(self, argnames: Sequence[str], freevars: Sequence[str]) -> None:
        self.argnames = argnames
        self.freevars = freevars
        self.namespace: dict[str, Any] = dict(HELPERS)
        self.watched: list[Ref] = []
        self._variables: dict[Source, str] = {}
        self._held: dict[tuple[int, str], str] = {}
        self._serials: dict[str, int] = {}

    def argument(self, name: str) -> str:
        """`args[i]`; GuardError if the function has no such argument."""
        return f"args[{_index(name, self.argnames, 'argument')}]"

    def freevar(self, name: str) -> str:
        """`function.__closure__[i]`; GuardError if the function has no such free variable."""
        return f"function.__closure__[{_index(name, self.freevars, 'free variable')}]"

    def bind(self, value: object, hint: str) -> str:
        """Return a literal, or the name of a namespace entry with `value`."""
        return repr(value) if is_literal(value) else self.hold(value, hint)

    def hold(self, value: object, hint: str) -> str:
        """Return the name of a namespace entry with exactly this object."""
        known = self._held.get((id(value), hint))
        if known is None:
            known = self._held[id(value), hint] = self._fresh(hint)
            self.namespace[known] = value
        return known

    def identical(self, x: str, ref: Ref) -> str:
        """`x is NAME` for an object that lives forever, else a comparison of addresses, watched for its death."""
        if not ref.weak:
            value = ref.get()
            if value is None or isinstance(value, bool):
                return f"{x} is {value}"
            return f"{x} is {self.hold(value, _identifier(getattr(value, '__name__', 'value')))}"
        self.watched.append(ref)
        return f"id({x}) == {ref.address:#x}"

    def variable(self, source: Source) -> str:
        known = self._variables.get(source)
        if known is None:
            known = self._variables[source] = self._fresh(_identifier(source.name))
        return known

    def has_variable(self, source: Source) -> bool:
        return source in self._variables

    def _fresh(self, name: str) -> str:
        """Return an unused name: `name`, or with a number after it."""
        serial = self._serials.get(name, 0)
        self._serials[name] = serial + 1
        fresh = f"{name}_{serial}" if serial else name
        if fresh in _RESERVED or keyword.iskeyword(fresh) or (serial and fresh in self._serials):
            return self._fresh(name)
        self._serials.setdefault(fresh, 1)
        return fresh


def _index(name: str, names: Sequence[str], what: str) -> int:
    if name not in names:
        raise GuardError(f"the guarded function has no {what} {name!r}: {nearest(name, names)}")
    return list(names).index(name)


_ROOT_PREFIX: Final = re.compile(r"^L\['(\w+)'\]")


def _identifier(text: str) -> str:
    """Return a readable identifier for a source's or object's name."""
    words = re.sub(r"\W+", "_", _ROOT_PREFIX.sub(r"\1", text)).strip("_").replace("__dict___", "")
    if not words or words[0].isdigit():
        words = f"v_{words}"
    return words if len(words) <= 60 else words[:28] + "__" + words[-28:]


def render(plan: Plan, names: ProgramNames, extracted: Sequence[Source] = ()) -> str:
    """Return the text of `check(args, function) -> bool`, or of `extract`, which returns the extracted values."""
    body = _state_lines(plan, names)
    walk = [line for step in plan.steps for line in _step_lines(step, names)]
    values = ", ".join(names.variable(source) for source in extracted)
    walk.append(f"return ({values},)" if extracted else "return True")
    if may_run_torch_function(tuple(plan.guards)):
        names.namespace["no_torch_function"] = unstable.DisableTorchFunction
        walk = ["with no_torch_function():", *(f"    {line}" for line in walk)]
    miss = "None" if extracted else "False"
    if names.watched:
        body.insert(0, "if dead: return MISS  # a guarded object is gone")
    lines = [f"    {line}" for line in (*body, *walk)]
    text = "\n".join([f"def {'extract' if extracted else 'check'}(args, function):", "  try:", *lines])
    return f"{text}\n  except Exception:\n    return MISS\n".replace("return MISS", f"return {miss}")


def may_run_torch_function(guards: Sequence[Guard]) -> bool:
    """Whether reading a tensor could call a torch-function mode's or a subclass's Python code."""
    if not any(map(_reads, guards)):
        return False
    no_modes = any(guard.kind.name == "TORCH_FUNCTION_MODES" and not guard.expected for guard in guards)
    return not no_modes or any(_is_subclass(guard.expected) for guard in guards)


def _reads(guard: Guard) -> bool:
    return guard.kind.reads_value or any(
        isinstance(step, _READING_STEPS) for source in (guard.source, *guard.operands) for step in source.chain()
    )


def _is_subclass(expected: object) -> bool:
    return isinstance(expected, TensorSpec) and expected.pytype.get() not in PLAIN_TYPES


def _state_lines(plan: Plan, names: ProgramNames) -> list[str]:
    if not plan.state:
        return []
    readers = [names.bind(BY_KIND[g.kind.name].read, g.kind.name.lower()) for g in plan.state]
    names.namespace["STATE"] = tuple(guard.expected for guard in plan.state)
    kinds = ", ".join(guard.kind.name for guard in plan.state)
    calls = ", ".join(f"{reader}()" for reader in readers)
    return [f"if ({calls},) != STATE: return MISS  # {kinds}"]


def _step_lines(step: Step, names: ProgramNames) -> list[str]:
    if isinstance(step, Guard):
        return [_guard_line(step, names)]
    source = step.source
    base = "" if source.base is None else names.variable(source.base)
    load = f"{names.variable(source)} = {source.expression(base, names)}"
    guards = sorted(step.guards, key=lambda guard: guard.kind.cost)
    return [f"{load}  # {source.name}".replace("\n", " "), *(_guard_line(guard, names) for guard in guards)]


def _guard_line(guard: Guard, names: ProgramNames) -> str:
    x = names.variable(guard.source) if names.has_variable(guard.source) else "None"
    operands = tuple(names.variable(source) for source in guard.operands)
    text = guard.kind.text(names, x, guard.expected, operands)
    guard.export.record(text)
    return f"if not ({text}): return MISS  # {guard.kind.name}"
