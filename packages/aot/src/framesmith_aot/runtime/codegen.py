"""The generated Python function around a compiled graph: one flat text instead of nested wrappers."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from framesmith_aot.runtime.grad_modes import EnableGrad, NoGrad
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace.metadata import Constant, GraphMeta, InputView, Repeat, SameInput, Slot, SlotView
from framesmith_aot.trace.views import NumberAt, Restride, Steps, ViewStep, with_history
from framesmith_aten.graphs.autograd_calls import through_one_node
from framesmith_aten.operators import op_name
from framesmith_guards.generated import generated_namespace
from framesmith_guards.torch_adapter import aten

_LITERALS = (int, float, bool, str, type(None))
_serial = itertools.count()

#: The dispatch key under which autograd tracks views and versions; None where torch lacks it and nothing compiles.
VIEW_TRACKING: Any = None
if unstable.has("DispatchKeySet") and unstable.has("ADInplaceOrView"):
    VIEW_TRACKING = unstable.DispatchKeySet(unstable.ADInplaceOrView)


class FunctionText:
    """The lines of a function and the values of its global names."""

    def __init__(self, name: str, parameters: Sequence[str]) -> None:
        self.lines = [f"def {name}({', '.join(parameters)}):"]
        self.names: dict[str, Any] = generated_namespace("framesmith_aot")
        self.name = name

    def line(self, text: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + text)

    def line_in(self, block: str, text: str) -> None:
        """Add a line to the block `block`; open the block unless it is the last one and still open."""
        opened = next((at for at in range(len(self.lines) - 1, 0, -1) if not self.lines[at].startswith(" " * 8)), 0)
        if self.lines[opened] != f"    {block}":
            self.line(block)
        self.line(text, 2)

    def bind(self, hint: str, value: Any) -> str:
        """Return a name for `value`; the same value keeps its name."""
        for number in itertools.count():
            name = hint if number == 0 else f"{hint}_{number}"
            if self.names.setdefault(name, value) is value:
                return name
        raise AssertionError("unreachable")

    def literal(self, value: Any) -> str:
        if isinstance(value, NumberAt):
            return number_name(value.index)
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.literal(item) for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if type(value) in _LITERALS and value == value and value not in (float("inf"), -float("inf")):
            return repr(value)
        return self.bind("const", value)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def build(self) -> Callable[..., Any]:
        """Compile the text; its lines show in tracebacks."""
        filename = f"<framesmith_aot {self.name} {next(_serial)}>"
        linecache.cache[filename] = (len(self.text), None, self.text.splitlines(True), filename)
        exec(compile(self.text, filename, "exec"), self.names)
        function: Callable[..., Any] = self.names[self.name]
        weakref.finalize(function, linecache.cache.pop, filename, None)
        return function


def unwatching(text: FunctionText) -> str:
    """Return the expression of a context in which autograd tracks no views and counts no versions."""
    return f"{text.bind('without', unstable.ExcludeDispatchKeyGuard)}({text.bind('view_tracking', VIEW_TRACKING)})"


def argument_name(position: int) -> str:
    return f"in{position}"


def own_name(position: int) -> str:
    """Return the name of a tensor that the graph holds."""
    return f"own{position}"


def number_name(position: int) -> str:
    return f"n{position}"


def slot_name(position: int) -> str:
    return f"r{position}"


def tuple_text(names: Sequence[str]) -> str:
    return f"({''.join(name + ', ' for name in names)})"


def unpacking(names: Sequence[str]) -> str:
    """Return the left side of an assignment from a sequence of `len(names)` items."""
    return f"[{', '.join(names)}]"


def write_mutations(
    text: FunctionText,
    meta: GraphMeta,
    inputs: Sequence[str],
    *,
    record: bool,
    copied: Collection[int] = (),
    counted: Collection[int] = (),
) -> None:
    """Write the copies to inputs, and count the versions of inputs that the graph has overwritten.

    `inputs` are the names of the graph's inputs. With `record`, statements not in no_grad
    are in enable_grad. `copied` are slots that inputs have received already, `counted` inputs whose versions are
    counted already.
    """
    count_versions(text, [inputs[at] for at in meta.written if meta.inputs[at].versioned and at not in counted])
    for copy in meta.copies:
        if copy.slot in copied:
            continue
        target = inputs[copy.index] if meta.inputs[copy.index].versioned else f"{inputs[copy.index]}.data"
        _guarded(text, _mode(copy.no_grad, record), f"{target}.copy_({slot_name(copy.slot)})")


def count_versions(text: FunctionText, names: Sequence[str]) -> None:
    if names:
        text.bind("increment_version", torch.autograd.graph.increment_version)
        text.line(f"increment_version({tuple_text(names)})")


def write_outputs(
    text: FunctionText, meta: GraphMeta, inputs: Sequence[str], *, record: bool, made: Collection[int | str] = ()
) -> None:
    """Write the view replays, the grad mode to leave, and the return statement; see `write_mutations`.

    `made` is what `view_statements` has written.
    """
    done: set[int | str] = {*made}
    names: list[str] = []
    for at, role in enumerate(output.role for output in meta.outputs):
        if isinstance(role, Repeat):
            names.append(names[role.index])
        elif isinstance(role, InputView | SlotView):
            for statement in view_statements(text, meta, at, inputs, done):
                _guarded(text, _mode(role.no_grad, record), statement)
            names.append(view_name(at))
        else:
            names.append(_output_text(text, role, inputs))
    if meta.grad_mode_after is not None:
        text.bind("set_grad_enabled", unstable.set_grad_enabled)
        text.line(f"set_grad_enabled({meta.grad_mode_after})")
    text.line(f"return {tuple_text(names)}")


def _mode(without: bool, record: bool) -> Callable[..., Any] | None:
    if without:
        return NoGrad
    return EnableGrad if record else None


def _output_text(text: FunctionText, output: Constant | NumberAt | SameInput | Slot, inputs: Sequence[str]) -> str:
    if isinstance(output, Constant):
        return text.literal(output.value)
    if isinstance(output, NumberAt):
        return number_name(output.index)
    return inputs[output.index] if isinstance(output, SameInput) else slot_name(output.index)


def view_statements(
    text: FunctionText, meta: GraphMeta, position: int, inputs: Sequence[str], done: set[int | str]
) -> Iterator[str]:
    """Yield the statements that replay an output that is a view, after those of its base; none for outputs in `done`.

    Outputs of one multi-output call stay outputs of one call: they share an autograd node. `done` also holds the names
    of such calls and parts.
    """
    if position in done:
        return
    led = meta.outputs[position].led
    if not led:
        done.add(position)
        value = yield from _view_value(text, meta, position, inputs, done)
        yield f"{view_name(position)} = {value}"
        return
    done.update(led)
    operands, names = [], []
    for at in led:
        role: Any = meta.outputs[at].role
        if isinstance(role, InputView | SlotView):
            operands.append((yield from _view_value(text, meta, at, inputs, done)))
            names.append(view_name(at))
        else:
            operands.append(_output_text(text, role, inputs))
            names.append("_")
    yield f"{unpacking(names)} = {text.bind('through_one_node', through_one_node)}({', '.join(operands)})"


def _view_value(
    text: FunctionText, meta: GraphMeta, position: int, inputs: Sequence[str], done: set[int | str]
) -> Generator[str, None, str]:
    """Yield the statements before the expression of a view; return it, for one that is led through a node its base."""
    output: Any = meta.outputs[position].role
    base = inputs[output.index] if isinstance(output, InputView) else slot_name(output.index)
    if output.over is not None:
        yield from view_statements(text, meta, output.over, inputs, done)
        base = view_name(output.over)
    steps = output.steps
    if meta.outputs[position].led and isinstance(steps[-1], ViewStep) and steps[-1].item is None:
        steps = steps[:-1]  # that of `through_one_node` itself
    shared = _shared(meta, output)
    if shared is not None:
        call = steps[shared]
        parts = f"parts_of_{base}_{call.call}{'_no_grad' if output.no_grad else ''}"
        part, rest = f"{parts}[{call.item}]", steps[shared + 1 :]
        if parts not in done:
            done.add(parts)
            yield f"{parts} = {_view_text(text, base, (*steps[:shared], replace(call, item=None)))}"
        if rest or part not in done:  # another tensor object for the same item
            base, steps = part, rest
            done.update(() if rest else (part,))
    view = _view_text(text, base, steps)
    if output.leaf:
        view = f"{view}.detach().requires_grad_()"
    if output.history is not None:
        view = f"{text.bind('with_history', with_history)}({view}, {slot_name(output.history)})"
    return view


def _shared(meta: GraphMeta, output: Any) -> int | None:
    """Return the position of the last step of a view that selects an item of a call shared with another output."""
    for count in reversed(range(len(output.steps))):
        step = output.steps[count]
        if isinstance(step, ViewStep) and step.item is not None:
            roles = (each.role for each in meta.outputs)
            others = (role for role in roles if role is not output and type(role) is type(output))
            if any(_is_of_call(each, output, count) for each in others):
                return count
    return None


def _is_of_call(other: Any, output: Any, count: int) -> bool:
    """Whether a view selects an item of the call that step `count` of `output` is."""
    if len(other.steps) <= count or not isinstance(other.steps[count], ViewStep):
        return False
    if other.steps[count].call != output.steps[count].call:
        return False
    return bool(replace(other, steps=other.steps[:count]) == replace(output, steps=output.steps[:count]))


def view_name(position: int) -> str:
    return f"out{position}"


def _guarded(text: FunctionText, mode: Callable[..., Any] | None, statement: str) -> None:
    if mode is None:
        text.line(statement)
    else:
        text.line_in(f"with {text.bind(mode.__name__, mode)}():", statement)


def _view_text(text: FunctionText, base: str, steps: Steps) -> str:
    value = base
    for step in steps:
        if isinstance(step, Restride):
            offset = f"{value}.storage_offset() + {text.literal(step.offset)}"
            value = f"{value}.as_strided({text.literal(step.size)}, {text.literal(step.stride)}, {offset})"
        else:
            value = _step_text(text, value, step)
    return value


def _step_text(text: FunctionText, value: str, step: ViewStep) -> str:
    if step.target is aten.detach.default:  # the C method is faster than calling the operator
        return f"{value}.detach()"
    parts = [value, *(text.literal(arg) for arg in step.args)]
    parts += [f"{key}={text.literal(arg)}" for key, arg in step.kwargs]
    call = f"{text.bind(op_name(step.target), step.target)}({', '.join(parts)})"
    return call if step.item is None else f"{call}[{step.item}]"
