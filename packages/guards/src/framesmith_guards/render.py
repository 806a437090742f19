"""The text of a check: one readable Python function that says whether all guards hold for a call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from framesmith_guards.errors import GuardError, nearest
from framesmith_guards.guard import Guard
from framesmith_guards.order import Plan, Step
from framesmith_guards.refs import Ref
from framesmith_guards.shapes import HELPERS
from framesmith_guards.sources import Source
from framesmith_guards.state import BY_KIND
from framesmith_guards.tensors import TensorSpec

_LITERALS: Final = frozenset({int, str, bytes, bool, type(None)})
_TENSOR_KINDS: Final = frozenset({"TENSOR_MATCH", "DISPATCH_KEYS", "SUBCLASS_METADATA", "SHAPE"})


def is_literal(value: object) -> bool:
    """Whether the value's repr is Python text for exactly that value."""
    return type(value) in _LITERALS or (type(value) is tuple and all(map(is_literal, value)))


@dataclass(eq=False)
class ProgramNames:
    """The names of a check's text: arguments, free variables, variables of sources, and its namespace."""

    argnames: Sequence[str]
    freevars: Sequence[str]
    namespace: dict[str, Any] = field(default_factory=lambda: dict(HELPERS))
    watched: list[Ref] = field(default_factory=list)
    variables: dict[Source, str] = field(default_factory=dict)

    def argument(self, name: str) -> str:
        """`args[i]`; GuardError if the function has no such argument."""
        return f"args[{_index(name, self.argnames, 'argument')}]"

    def freevar(self, name: str) -> str:
        """`function.__closure__[i]`; GuardError if the function has no such free variable."""
        return f"function.__closure__[{_index(name, self.freevars, 'free variable')}]"

    def bind(self, value: object, hint: str) -> str:
        """A literal, or the name of a namespace entry holding `value`."""
        return repr(value) if is_literal(value) else self.hold(value, hint)

    def hold(self, value: object, hint: str) -> str:
        """The name of a namespace entry holding exactly this object."""
        name = hint
        serial = 0
        while name in self.namespace and self.namespace[name] is not value:
            serial += 1
            name = f"{hint}_{serial}"
        self.namespace[name] = value
        return name

    def identical(self, x: str, ref: Ref) -> str:
        """`x is NAME` for what lives forever, else a comparison of addresses that is watched for the death."""
        if not ref.weak:
            value = ref.get()
            if value is None or isinstance(value, bool):
                return f"{x} is {value}"
            return f"{x} is {self.hold(value, _identifier(getattr(value, '__name__', 'value')))}"
        if all(known is not ref for known in self.watched):
            self.watched.append(ref)
        return f"id({x}) == {ref.address:#x}"

    def variable(self, source: Source) -> str:
        """The variable that holds a loaded source's value."""
        known = self.variables.get(source)
        if known is None:
            known = _unique(_identifier(source.name), self.variables.values(), self.namespace)
            self.variables[source] = known
        return known


def _index(name: str, names: Sequence[str], what: str) -> int:
    if name not in names:
        raise GuardError(f"the guarded function has no {what} {name!r}: {nearest(name, names)}")
    return list(names).index(name)


_ROOT_PREFIX: Final = re.compile(r"^L\['(\w+)'\]")


def _identifier(text: str) -> str:
    """A readable identifier for a source's or object's name."""
    words = re.sub(r"\W+", "_", _ROOT_PREFIX.sub(r"\1", text)).strip("_").replace("__dict___", "")
    if not words or words[0].isdigit():
        words = f"v_{words}"
    return words if len(words) <= 60 else words[:28] + "__" + words[-28:]


def _unique(name: str, *taken: Any) -> str:
    used = set().union(*taken) | {"args", "function", "check", "dead", "state"} | set(dir(__builtins__))
    fresh, serial = name, 0
    while fresh in used or not fresh.isidentifier():
        serial += 1
        fresh = f"{name}_{serial}"
    return fresh


def render(plan: Plan, names: ProgramNames, extracted: Sequence[Source] = ()) -> str:
    """The text of `check(args, function) -> bool` (of `extract`, giving the extracted values, if there are any)."""
    body = _state_lines(plan, names)
    walk = [line for step in plan.steps for line in _step_lines(step, names)]
    values = ", ".join(names.variable(source) for source in extracted)
    walk.append(f"return ({values},)" if extracted else "return True")
    if may_run_torch_function(plan):
        names.namespace["no_torch_function"] = torch._C.DisableTorchFunction
        walk = ["with no_torch_function():", *(f"    {line}" for line in walk)]
    miss = "None" if extracted else "False"
    if names.watched:
        body.insert(0, "if dead: return MISS  # a guarded object is gone")
    lines = [f"    {line}" for line in (*body, *walk)]
    text = "\n".join([f"def {'extract' if extracted else 'check'}(args, function):", "  try:", *lines])
    return f"{text}\n  except Exception:\n    return MISS\n".replace("return MISS", f"return {miss}")


def may_run_torch_function(plan: Plan) -> bool:
    """Whether reading a tensor could call a torch-function mode's or a subclass's Python code."""
    guards = list(plan.guards)
    if not any(guard.kind.name in _TENSOR_KINDS for guard in guards):
        return False
    no_modes = any(guard.kind.name == "TORCH_FUNCTION_MODES" and not guard.expected for guard in guards)
    return not no_modes or any(_is_subclass(guard.expected) for guard in guards)


def _is_subclass(expected: object) -> bool:
    return isinstance(expected, TensorSpec) and expected.pytype.get() not in (torch.Tensor, torch.nn.Parameter)


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
    x = "None" if guard.source not in names.variables else names.variable(guard.source)
    operands = tuple(names.variable(source) for source in guard.operands)
    text = guard.kind.text(names, x, guard.expected, operands)
    guard.export.record(text)
    return f"if not ({text}): return MISS  # {guard.kind.name}"
