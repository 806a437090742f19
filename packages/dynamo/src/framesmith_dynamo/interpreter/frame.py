"""One interpreted frame: stack, variables, position in the code; it implements `Tracer`, the interface for values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from framesmith_aten.assumptions import Asserted
from framesmith_bytecode import EXIT_SLOTS
from framesmith_dynamo.breaks import GraphBreak, drop_tracebacks, register_break
from framesmith_dynamo.interpreter import inlining, repeated_regions
from framesmith_dynamo.interpreter.decoded import DecodedCode, decoded
from framesmith_dynamo.tensor_calls import calls, ordered_effects
from framesmith_dynamo.tensor_calls.rollback import check_failure
from framesmith_dynamo.torch_adapter import unstable
from framesmith_dynamo.trace_state import TraceState
from framesmith_dynamo.values.base import Args, Kwargs, TracedRaise, TraceFacts, Value
from framesmith_dynamo.values.constants.symbolic import SymbolicNumber
from framesmith_dynamo.values.exits import ExitValue
from framesmith_dynamo.values.functions.cells import CellValue
from framesmith_dynamo.values.functions.functions import MethodValue
from framesmith_dynamo.values.lookup.entries import SETTLED_KINDS, guard_same
from framesmith_dynamo.values.lookup.libraries import is_settled
from framesmith_dynamo.values.lookup.static import is_compared_by_code
from framesmith_dynamo.values.objects.exceptions import ExceptionValue
from framesmith_dynamo.values.opaque import OpaqueValue
from framesmith_dynamo.values.tensors.tensor import TensorValue
from framesmith_dynamo.values.torch_api.contexts import TorchContextValue
from framesmith_dynamo.values.wrap import wrap_object
from framesmith_dynamo.values.wrap_registry import build
from framesmith_guards import Guard, GuardError, HandledExceptionSource, Location, ShapeExpr, TensorSpec

if TYPE_CHECKING:
    import torch

    from framesmith_dynamo.graph.builder import GraphBuilder
    from framesmith_guards import Source
    from framesmith_sideeffects import Journal

CANNOT_GUARD = register_break(
    "cannot-guard",
    what="an object is used whose identity cannot be checked at later calls",
    why="it has neither a permanent identity nor a value that can be compared",
    hint="keep the object in a local variable of eager code, or use a plain function or class instead",
)
CALLERS_EXCEPTION = register_break(
    "callers-exception",
    what="the program reads the exception being handled, and a caller is handling one",
    why="it is known only when the compiled code runs",
    hint="read it in the except block itself",
)
COMPARED_CLASS = register_break(
    "compared-class",
    what="a class whose metaclass has its own __eq__ or __hash__ is used, or an object of such a class",
    why="the tracer stores facts by class, and would run those methods",
    hint="compare classes with `is`, or use them outside the compiled function",
)

#: Types whose objects are distinguished by value: each source has its own guard, identity is never used.
BY_VALUE = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), tuple, frozenset, range,
    slice,
})  # fmt: skip


def _is_exit_of_torch(value: Value | None) -> bool:
    """Whether a slot of the stack holds the exit of a context of torch, which a continuation has entered itself."""
    if isinstance(value, MethodValue):
        return value.owner.python_type().__module__.partition(".")[0] == "torch"
    return isinstance(value, ExitValue) and isinstance(value.manager, TorchContextValue)


class Frame:
    """A frame being interpreted. `stack` holds values, or None for NULL. `pc` is the index of the next instruction.

    `stop` is set by instructions that leave the frame (return, yield); `result` is then its result. `outer` is the
    location of the call or resumption. `operands` are the values that the running instruction holds: the stack before
    it, and generators created for it. `locals_were_read`: whether the program has called
    `locals()`. `is_suspended`: whether a generator's frame has stopped at a `yield`; `handled` is then the exception
    that it handles.
    """

    __slots__ = (
        "cells",
        "code",
        "globals",
        "handled",
        "is_suspended",
        "locals",
        "locals_were_read",
        "operands",
        "outer",
        "parent",
        "pc",
        "result",
        "stack",
        "state",
        "stop",
    )

    def __init__(
        self,
        state: TraceState,
        code: DecodedCode,
        globals: dict[str, Any],
        locals: dict[str, Value],
        cells: dict[str, CellValue],
        parent: Frame | None,
    ) -> None:
        self.state = state
        self.code = code
        self.globals = globals
        self.locals = locals
        self.cells = cells
        self.parent = parent
        self.outer: Location | None = None
        self.stack: list[Value | None] = []
        self.operands: tuple[Value | None, ...] = ()
        self.pc = 0
        self.stop = False
        self.is_suspended = False
        self.result: Value | None = None
        self.handled: Value | None = None
        self.locals_were_read = False

    def may_catch(self) -> bool:
        """Whether code of the frame, other than torch's contexts, may see an exception that the instruction raises.

        The handlers around a `with` statement are its own, and that which forgets the exception at its end.
        """
        code, protection = self.code, self.code.protections[self.pc - 1]
        while protection is not None:
            first, second = (one.op for one in code.instrs[protection.target : protection.target + 2])
            if (first, second) == ("PUSH_EXC_INFO", "WITH_EXCEPT_START"):
                if not any(map(_is_exit_of_torch, self.stack[protection.depth - EXIT_SLOTS : protection.depth])):
                    return True
            elif first != "COPY":
                return True
            protection = code.protections[protection.target]
        return False

    # The value stack

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        """Pop a value, which must not be NULL."""
        value = self.stack.pop()
        assert value is not None, "NULL popped as a value"
        return value

    def popn(self, n: int) -> list[Value]:
        """Pop n values, the deepest first."""
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values  # type: ignore[return-value]

    def peek(self, depth: int) -> Value:
        """Return the value at position `depth` from the top, 1 being the top."""
        value = self.stack[-depth]
        assert value is not None, "NULL read as a value"
        return value

    def jump(self, label: Any) -> None:
        """Continue at a label."""
        self.pc = self.code.targets[label]

    def cell(self, name: str) -> CellValue:
        """Return the cell of a cell or free variable."""
        return self.cells[name]

    def has_cell(self, name: str) -> bool:
        """Whether the slot of a variable holds a cell, and no inlined comprehension uses it."""
        bytecode = self.code.bytecode
        return name in bytecode.cellvars or name in bytecode.freevars

    def moved_cells(self) -> dict[str, CellValue]:
        """The variables whose cell was replaced by an inlined comprehension."""
        return {}

    def unread_arguments(self) -> Collection[str]:
        """The arguments that the trace has not read, which stay in their locals."""
        return ()

    def location(self) -> Location:
        """The running instruction's location in the user's program, with those of the calls that led to it."""
        instrs, at = self.code.instrs, max(self.pc - 1, 0)
        position = instrs[at].position
        if position is None or position[0] is None:
            position = next((one.position for one in instrs[at::-1] if one.lineno is not None), None)
        bytecode = self.code.bytecode
        lineno, _, column, _ = position or (None,) * 4
        return Location(bytecode.filename, lineno or bytecode.firstlineno, bytecode.qualname, self.outer, column)

    # Tracer

    @property
    def journal(self) -> Journal[Value]:
        return self.state.journal

    @property
    def builder(self) -> GraphBuilder:
        return self.state.builder

    @property
    def operations(self) -> int:
        return self.state.builder.operations

    def own_variables(self) -> dict[str, Value] | None:
        """The bound variables, in the order of the code's names; once per frame."""
        if self.locals_were_read:
            return None
        self.locals_were_read = True
        bytecode = self.code.bytecode
        names = dict.fromkeys((*bytecode.varnames, *bytecode.cellvars, *bytecode.freevars))
        found = {name: self.cell(name).load(self) if self.has_cell(name) else self.locals.get(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def exception_now(self) -> Value | None:
        """The exception that the program handles; see `Tracer.exception_now`."""
        if self.state.handled is not None:
            return self.state.handled
        if self.state.log.outside is not None:
            raise GraphBreak(CALLERS_EXCEPTION)
        self.guard(HandledExceptionSource(), "NONE_MATCH")
        return None

    @property
    def root_globals(self) -> dict[str, Any]:
        return self.state.globals

    @property
    def facts(self) -> TraceFacts:
        return self.state.facts

    def wrap(self, obj: object, source: Source) -> Value:
        """Return the value of `obj`, found at `source`, guarded. The same object has the same value."""
        state = self.state
        known = state.by_source.get(source)
        if known is not None:
            return known
        if is_compared_by_code(obj):
            broken = GraphBreak(COMPARED_CLASS, f"{type(obj).__module__}.{type(obj).__qualname__}")
            value = self._wrap_opaque(obj, source, broken)
        else:
            value = self._wrap_value(obj, source) if type(obj) in BY_VALUE else self._wrap_identity(obj, source)
        state.by_source[source] = value
        return value

    def _wrap_value(self, obj: object, source: Source) -> Value:
        """Return the value of an object distinguished by its contents, or by identity where that is impossible."""
        value = self._wrapped(obj, source)
        return self._wrap_identity(obj, source) if isinstance(value, OpaqueValue) else value

    def _wrap_identity(self, obj: object, source: Source) -> Value:
        met = self.state.by_identity.get(id(obj))
        if met is not None:
            guard_same(self, obj, source, met[2])
            return met[1]
        value = self._wrapped(obj, source)
        if value.source is not None:
            self.state.by_identity[id(obj)] = (obj, value, source)
        return value

    def _wrapped(self, obj: object, source: Source) -> Value:
        try:
            return wrap_object(self, obj, source)
        except GraphBreak as broken:
            return self._wrap_opaque(obj, source, broken)

    def _wrap_opaque(self, obj: object, source: Source, broken: GraphBreak) -> Value:
        """Return the value of an object that cannot be traced: it may be passed along, and its first use breaks."""
        self.guard(source, "TYPE_MATCH", type(obj))
        drop_tracebacks(broken, self.state.log.outside)
        return OpaqueValue(type(obj), source, broken)

    def constant(self, obj: object) -> Value:
        return build(self, obj)

    def guard(self, source: Source, kind: str, expected: object = None) -> None:
        """Add a guard to the compiled code."""
        if kind in SETTLED_KINDS and is_settled(source):
            return
        try:
            self.state.guards.add(Guard(source, kind, expected))
        except GuardError as error:
            raise GraphBreak(CANNOT_GUARD, str(error)) from error

    def call(self, fn: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call any value."""
        return fn.call(self, args, kwargs)

    def call_region(self, fn: Value, args: Args, kwargs: Kwargs) -> Value:
        return repeated_regions.call_region(self, self.state, fn, args, kwargs)

    def inline(self, function: FunctionType, bound: Mapping[str, Value], closure: Sequence[Value]) -> Value:
        """Interpret a Python function's body in a child frame and return its result."""
        inlining.check(self.state, function)
        code = decoded(function.__code__)
        cells = dict(zip(code.bytecode.freevars, closure, strict=True))
        child = Frame(self.state, code, function.__globals__, dict(bound), cells, self)  # type: ignore[arg-type]
        child.make_cells()
        return inlining.run(self.state, child, function)

    def make_cells(self) -> None:
        """Create the frame's own cells; an argument that is a cell variable moves into its cell."""
        for name in self.code.bytecode.cellvars:
            cell = CellValue()
            self.journal.track_new(cell)
            if name in self.locals:
                cell.store(self, self.locals.pop(name))
            self.cells[name] = cell

    def super_arguments(self) -> tuple[Value, Value]:
        """Return the `__class__` cell's contents and the first argument of this frame."""
        first = self.code.argument_names[0] if self.code.argument_names else None
        if first is None:
            self.raise_(RuntimeError, "super(): no arguments")
        if "__class__" not in self.code.bytecode.freevars:
            self.raise_(RuntimeError, "super(): __class__ cell not found")
        owner = self.cell("__class__").load(self)
        self_value = self.cell(first).load(self) if first in self.code.bytecode.cellvars else self.locals.get(first)
        if owner is None or self_value is None:
            self.raise_(
                RuntimeError, "super(): arg[0] deleted" if self_value is None else "super(): empty __class__ cell"
            )
        return owner, self_value

    def tensor_input(self, obj: torch.Tensor, source: Source) -> Value:
        fake = self.state.symbols.tensor(obj, source)
        self.guard(source, "TENSOR_MATCH", TensorSpec.of(obj, like=fake))
        ref = self.state.builder.add_input(obj, source, fake)
        if calls.accumulates_nothing(obj):
            self.state.builder.leaf_views.append(ref.fake)
        value = self.state.tensors[ref] = TensorValue(ref, cls=type(obj), source=source)
        return value

    def number_input(self, obj: int | float, source: Source) -> Value | None:
        number = self.state.symbols.number(obj, source)
        if number is None:
            return None
        self.guard(source, "TYPE_MATCH", type(obj))
        return SymbolicNumber(self.state.builder.add_number(number, source), obj)

    def symbol(self, number: Any) -> Value:
        return SymbolicNumber(self.state.builder.number_ref(number))

    def expression(self, number: Any) -> ShapeExpr | None:
        return self.state.symbols.expression(number)

    def hint_at(self, source: Source) -> int | float | bool | None:
        return self.state.symbols.hint_at(source)

    def compute_number(self, function: Callable[..., Any], name: str, operands: Sequence[Any]) -> Value | None:
        number = self.state.symbols.computed(name, operands)
        if number is None:
            return None
        self.state.builder.compute_number(function, operands, number)
        return self.symbol(number)

    def must_hold(self, condition: Any, text: str) -> bool:
        if any(one.may_catch() for one in self.state.running) or self.state.handled is not None:
            return False
        self.builder.check_assumptions()
        unstable.expect_true(condition)
        self.builder.check_assumptions(Asserted.PROGRAM, text)
        check_failure(self.builder, "a check of the program's")
        return True

    def call_torch(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value:
        return calls.call_torch(self, target, args, kwargs)

    def leave_call(self, function: Callable[..., object], args: Args, kwargs: Kwargs, changed: Sequence[Value]) -> bool:
        return ordered_effects.left_to_python(self, self.state, function, args, kwargs, changed)

    def expect_changes(self, source: Source) -> None:
        self.state.symbols.expect_changes(source)

    def tensor_of(self, fake: torch.Tensor) -> Value | None:
        ref = self.state.builder.refs.get(id(fake))
        return None if ref is None else self.state.tensors.get(ref)

    def become(self, tensor: Value, made: Value) -> None:
        assert isinstance(tensor, TensorValue)
        assert isinstance(made, TensorValue)
        tensor.ref = made.ref
        self.state.tensors[made.ref] = tensor

    def emit_state(self, target: Any, *args: Any) -> Any:
        return self.state.builder.emit_state(target, args)

    def raise_(self, exc_type: type[BaseException], *args: object) -> NoReturn:
        """Raise an exception in the traced program. Arguments are values, or objects that become constants."""
        values = [arg if isinstance(arg, Value) else self.constant(arg) for arg in args]
        error = ExceptionValue.new(self, exc_type, values)
        error.chain(self, self.state.handled)
        raise TracedRaise(error)
