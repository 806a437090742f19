"""Reports of captured passes: the calls that are compiled, and those that are opaque, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import fx

from framesmith_autograd_compiler import calls, user_calls
from framesmith_autograd_compiler.schedule import Accumulation, Segment, Step

#: Compiled calls, calls that run one by one, user code, and writes to `.grad`.
StepKind = Literal["compiled", "call by call", "opaque", "accumulation"]

#: By the call that records it: what user code is, and why it is not traced.
WHY_OPAQUE: Final[dict[Any, tuple[str, str]]] = {
    user_calls.call_tensor_hook: ("hook of a tensor", "user code, which may do more than compute its result"),
    calls.call_cpp_hook: ("hook in C++", "it has no Python to trace"),
    user_calls.call_pre_hook: ("hook before a node", "user code, which may do more than compute its result"),
    user_calls.call_post_hook: ("hook behind a node", "user code, which may do more than compute its result"),
    calls.call_leaf_hook: ("hook after accumulation", "user code, which may change the leaf"),
    calls.call_unpack_hook: ("unpack hook of a saved tensor", "user code, which may read from anywhere"),
    calls.call_backward: ("backward of a Function", "user code; its class has no `evaluate_backward` to trace"),
    calls.copy_slices_epilogue: (
        "write to a part of a gradient",
        "user code may hold the gradient, and sees the write",
    ),
}

#: Calls that are no derivatives: checks and items.
_BESIDE: Final = frozenset({"getitem", "validate_outputs"})


@dataclass(frozen=True)
class CapturedStep:
    """A step of a captured pass, in the order in which it runs: its calls, and why they are not compiled, if so."""

    kind: StepKind
    calls: tuple[str, ...]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {', '.join(self.calls)}" + (f" ({self.why})" if self.why else "")


def name_of(hook: Any) -> str:
    """Return the name of a hook, or of the Function whose context it is, with the line where it is defined."""
    cls = getattr(hook, "_forward_cls", None)
    if cls is not None:
        return str(cls.__qualname__)
    inner = getattr(hook, "func", hook)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name if code is None else f"{name} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


def explain_steps(
    steps: Sequence[Step], uncompiled: Iterable[int], hooks: Sequence[str], untraced: Mapping[fx.Node, str]
) -> Iterator[CapturedStep]:
    """Yield the steps of a pass.

    `uncompiled`: the positions of segments without a compiled graph; `hooks`: names; `untraced`: reasons of user code.
    """
    without = {*uncompiled}
    for at, step in enumerate(steps):
        if isinstance(step, Segment):
            names = tuple(name for node in step.nodes if (name := _name(node, hooks)) not in _BESIDE)
            if names:
                yield CapturedStep("call by call" if at in without else "compiled", names)
        elif isinstance(step, Accumulation):
            yield CapturedStep("accumulation", ("write to .grad",))
        elif step.node.target in WHY_OPAQUE:
            what, why = WHY_OPAQUE[step.node.target]
            name = f"{what} {_hook(step.node, hooks)}".rstrip()
            yield CapturedStep("opaque", (name,), untraced.get(step.node, why))


def _name(node: fx.Node, hooks: Sequence[str]) -> str:
    if node.target in WHY_OPAQUE and (hook := _hook(node, hooks)):
        return f"{WHY_OPAQUE[node.target][0]} {hook}"
    return str(getattr(node.target, "__name__", node.target))


def _hook(call: fx.Node, hooks: Sequence[str]) -> str:
    for node in call.all_input_nodes:
        given = calls.PASS_INPUT.get(node)
        if given is not None and given.kind == "hook" and given.index < len(hooks):
            return hooks[given.index]
    return ""


def accumulations_joined(steps: Iterable[CapturedStep]) -> Iterator[str]:
    """Yield the lines of steps; writes to `.grad` that follow each other are one line."""
    count = 0
    for step in (*steps, None):
        if step is not None and step.kind == "accumulation":
            count += 1
            continue
        if count:
            yield f"accumulation: {count} write{'s' * (count > 1)} to .grad"
            count = 0
        if step is not None:
            yield str(step)
