"""The value protocol: the interpreter's knowledge of a Python object while tracing.

Methods are named after Python's data model and take the tracer first. The defaults here break the graph; a family of
types overrides the operations it supports. Values never access the interpreter's frames: their interface to it is
`Tracer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from framesmith_dynamo.breaks import (
    C_METHOD,
    NOT_CONSTANT,
    OPAQUE_DESCRIPTOR,
    UNSUPPORTED_CALL,
    UNSUPPORTED_OPERATION,
    BreakKind,
    GraphBreak,
    register_break,
)
from framesmith_sideeffects import load_source

if TYPE_CHECKING:
    from types import FunctionType, ModuleType

    import torch

    from framesmith_bytecode import Codegen
    from framesmith_dynamo.graph.builder import GraphBuilder
    from framesmith_dynamo.values.transform_levels import Level
    from framesmith_guards import ShapeExpr, Source
    from framesmith_sideeffects import Journal, Mutation

#: Instructions that one trace interprets at most: about ten seconds.
MAX_STEPS = 1_000_000
TOO_LONG = register_break(
    "trace-too-long",
    what="the trace is very long, or has no end",
    why=f"a trace unrolls loops; this one has reached {MAX_STEPS:,} instructions",
    hint="run loops over numbers outside the compiled function, or write them as tensor operations",
)

Args = Sequence["Value"]
Kwargs = Mapping[str, "Value"]


@dataclass(slots=True)
class CacheUse:
    """The calls of one cached function in the trace: results by key, and whether a key was missing."""

    results: dict[Any, Value] = field(default_factory=dict)
    missed: bool = False


@dataclass(slots=True)
class BodyContext:
    """The bodies of functions that are being traced and have rules of their own; each resets it when it ends."""

    #: Whether 0-d tensors are indices in subscripts, as in a function of single elements.
    elementwise_subscripts: bool = False
    #: The innermost function transform.
    level: Level | None = None
    #: The number of those that are differentiated: their tensors have histories that the trace's have not.
    differentiated: int = 0
    #: The number of nested methods of Functions, and of those that are `backward`: a second derivative may go through
    #: what they call.
    functions: int = 0
    backwards: int = 0
    #: The number of nested bodies of cached functions.
    cached_calls: int = 0
    #: The number of nested functions of reentrant checkpoints: eager mode first runs them without gradients.
    reentrant: int = 0


@dataclass(slots=True)
class TraceFacts:
    """Facts found by a trace, besides its guards and its journal.

    A restarted trace begins new ones, with the `called_for_real` of the attempt before.
    """

    body: BodyContext = field(default_factory=BodyContext)

    #: The path to each module and class of a trusted library; None for others.
    library_paths: dict[ModuleType | type, Source | None] = field(default_factory=dict)
    #: The source of each class, and the classes whose layout is guarded.
    class_sources: dict[type, Source | None] = field(default_factory=dict)
    guarded_classes: set[type] = field(default_factory=set)
    #: The source of each module's dictionary, by id; and the values whose attribute dictionaries these are.
    namespaces: dict[int, Source] = field(default_factory=dict)
    instance_dicts: dict[int, Value] = field(default_factory=dict)
    #: Dictionaries that several objects share; the trace must not change them.
    shared_dicts: set[int] = field(default_factory=set)
    #: The one value of each class.
    classes: dict[type, Value] = field(default_factory=dict)
    #: Existing objects used as keys that are distinguished by identity.
    identity_keys: dict[int, Value] = field(default_factory=dict)
    #: Modules, with one of their hook dictionaries, whose hooks are counted; and whether the global ones are.
    counted_hooks: set[tuple[int, str]] = field(default_factory=set)
    counted_global_hooks: bool = False
    #: Results of entering existing autocast contexts, by the id of the context's value.
    entered_autocast: dict[int, list[Any]] = field(default_factory=dict)
    #: Values referenced by a call into C code while it runs the program's code: the iterators that it consumes.
    working: list[Value] = field(default_factory=list)
    #: Strings found at sources of which only the type is guarded so far.
    unread_strings: dict[Source, type] = field(default_factory=dict)
    #: The items of 0-d tensors, where known: by the id of the tensor's ref, for one version.
    tensor_items: dict[int, tuple[Value, int, Value]] = field(default_factory=dict)
    #: Symbolic bools read off conditions, by expression, with the condition as a tensor.
    truths: dict[Any, Value] = field(default_factory=dict)
    #: Whether float32 tensors stand for numbers that eager mode reads as doubles; and whether doubles do.
    has_narrow_numbers: bool = False
    wide_numbers: bool = False
    #: The calls of each cached function, by its id; the results of those whose bodies were interpreted, with the
    #: expected state of their caches, by the value's id.
    caches: dict[int, CacheUse] = field(default_factory=dict)
    cached_results: dict[int, tuple[Value, Any]] = field(default_factory=dict)
    #: The values of the numbers of existing hooks.
    hook_numbers: dict[int, Value] = field(default_factory=dict)
    #: The storages of fakes with hooks to register after the graph.
    hooked: set[int] = field(default_factory=set)
    #: The storages of fakes that inputs get after the graph, by `tensor.data = ...`.
    shared_data: set[int] = field(default_factory=set)
    #: The storages of fakes that calls read which are made after the graph; and whether operators with effects are
    #: among these calls.
    read_after_graph: set[int] = field(default_factory=set)
    has_ordered_effects: bool = False
    #: Whether calls are interpreted that could be made after the graph: the trace uses what they change.
    follows_calls: bool = False
    #: Tensors of the trace, by id, that keep their gradients.
    retains_grad: dict[int, Value] = field(default_factory=dict)
    #: Whether autograd's engine runs in the graph.
    runs_engine: bool = False
    #: The handles of hooks that the trace has registered on tensors and on nodes of modules, removed ones too.
    registered: list[Any] = field(default_factory=list)
    #: The autograd nodes of tensors that modules with backward hooks take and return, by the id of the tensor.
    hook_nodes: dict[int, Value] = field(default_factory=dict)
    #: Cached functions, by id, whose new results are needed after the trace: calls that make them end the graph.
    called_for_real: set[int] = field(default_factory=set)
    #: The count of interpreted instructions, and of items that C functions have taken of iterators.
    steps: int = 0

    def step(self) -> None:
        """Count one instruction or item. Breaks at MAX_STEPS."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise GraphBreak(TOO_LONG)


class Tracer(Protocol):
    """The interface of the interpreter for values."""

    @property
    def journal(self) -> Journal[Value]:
        """The mutations of this trace so far."""

    @property
    def globals(self) -> dict[str, Any]:
        """The globals of the Python frame being interpreted."""

    def wrap(self, obj: object, source: Source) -> Value:
        """Return the value of `obj`, found at `source`, guarded. The same object has the same value."""

    def constant(self, obj: object) -> Value:
        """Return the value of an object made while tracing or known immutable (int, str, dtype, tuple of those...)."""

    def guard(self, source: Source, kind: str, expected: object = None) -> None:
        """Add a guard to the compiled code, unless it is implied by another."""

    def call(self, fn: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call any value: the single entry for calls."""

    def call_region(self, fn: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call the function of a nested compile region, of which equal calls become calls of one body."""

    def inline(self, function: FunctionType, bound: Mapping[str, Value], closure: Sequence[Value]) -> Value:
        """Interpret a Python function's body in a child frame and return its result.

        `bound` maps each argument name (`*args` and `**kwargs` included) to its value: `values.functions.binding` has
        bound them, defaults included. `closure` holds one `CellValue` for each of `function.__code__.co_freevars`.
        """

    def tensor_input(self, obj: torch.Tensor, source: Source) -> Value:
        """Return the value of a real tensor found at `source`: guarded, with a fake, and a placeholder on first use."""

    def super_arguments(self) -> tuple[Value, Value]:
        """Return the operands of `super()` without arguments: the `__class__` cell's contents, the first argument."""

    @property
    def builder(self) -> GraphBuilder:
        """The builder of the graph."""

    @property
    def operations(self) -> int:
        """The number of operations in the graph."""

    def own_variables(self) -> dict[str, Value] | None:
        """The bound variables of the running function; None if the program has read them before."""

    def exception_now(self) -> Value | None:
        """The exception that the program handles, or None, which is guarded for the callers as well."""

    @property
    def root_globals(self) -> dict[str, Any]:
        """The globals of the frame being compiled."""

    @property
    def facts(self) -> TraceFacts:
        """The facts found by the trace, shared by all its frames."""

    def call_torch(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value:
        """Record a call in the graph: `target` is a torch function, or a str naming a tensor method (self first).

        Arguments are values or nested lists/tuples/dicts of values. The call is run on fake tensors; tensors in the
        result (also inside tuples and lists) are returned as values, other results as constants. Every tensor value is
        a `values.tensors.tensor.TensorValue` around a `graph.builder.TensorRef` (`.fake`, `.node`).
        """

    def number_input(self, obj: int | float, source: Source) -> Value | None:
        """Return the value of a symbolic number found at `source`; None of a static one."""

    def symbol(self, number: Any) -> Value:
        """Return the value of a symbolic number of this trace; the same symbol has the same value."""

    def expression(self, number: Any) -> ShapeExpr | None:
        """Return a symbolic integer as an expression of the inputs' sizes and numbers; None of an unbacked one."""

    def hint_at(self, source: Source) -> int | float | bool | None:
        """Return the value at the source of a symbol in the traced call."""

    def compute_number(self, function: Callable[..., Any], name: str, operands: Sequence[Any]) -> Value | None:
        """Return the result of a function of numbers, some symbolic, to be computed when the graph runs.

        `name` is that of the function in `framesmith_guards.kinds.shapes.EXACT`. None where the function raises for the
        numbers of this call, or returns no number: then the numbers must be specialised.
        """

    def must_hold(self, condition: Any, text: str) -> bool:
        """Let the graph check a condition on unbacked numbers, without which the program raises, as `text` says.

        The frame then runs eagerly. False, with nothing recorded, where the program may catch the exception.
        """

    def leave_call(self, function: Callable[..., object], args: Args, kwargs: Kwargs, changed: Sequence[Value]) -> bool:
        """Leave a call to Python, after the graph; it returns None and changes the objects `changed`, no tensors.

        False, with nothing recorded, where it has to be interpreted.
        """

    def expect_changes(self, source: Source) -> None:
        """Note that the number at a source will have changed at later calls: it is a symbol from the next trace on."""

    def tensor_of(self, fake: torch.Tensor) -> Value | None:
        """Return the value of a tensor of the trace, None of other fakes."""

    def become(self, tensor: Value, made: Value) -> None:
        """Let a tensor of the trace go on as another, which a call has made for this alone."""

    def emit_state(self, target: Any, *args: Any) -> Any:
        """Record a call that changes torch's global state, and make it now.

        `target` is `torch._C._set_grad_enabled` and the like; arguments are plain, or results of earlier `emit_state`
        calls. Returns the real result. The state is restored when the trace ends.
        """

    def raise_(self, exc_type: type[BaseException], *args: object) -> NoReturn:
        """Raise an exception in the traced program (it may be caught there)."""


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a class dictionary: the class that holds it and the raw object (descriptors not called)."""

    owner: type
    raw: Any


class TracedRaise(Exception):
    """An exception of the traced program, propagating through interpreted frames. `value` is the exception's value."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


class Value:
    """A Python object as the tracer sees it.

    `source`: the path by which compiled code loads the object, or None when it was made in the trace. `mutation`: the
    journal's record when this object may be mutated (containers, objects, cells), else None.
    """

    #: Python types of this family, if fixed. `python_type` returns the first unless it is overridden.
    python_types: ClassVar[tuple[type, ...]] = ()
    #: Whether None from an operator method is Python's NotImplemented (both: TypeError), not a gap of the tracer.
    exact_operators: ClassVar[bool] = False
    #: Counts the changes of a container that an iterator over it notices.
    version: int = 0

    __slots__ = ("mutation", "source")

    def __init__(self, *, source: Source | None = None, mutation: Mutation | None = None) -> None:
        self.source = source
        self.mutation = mutation

    # What it is

    @property
    def is_new(self) -> bool:
        """Whether the trace made the object, and tracks it in the journal."""
        return self.mutation is not None and self.mutation.is_new

    def python_type(self) -> type:
        """The result of `type(obj)`."""
        return self.python_types[0]

    def is_constant(self) -> bool:
        """Whether the object is the same at every call: `as_constant` returns it without a guard."""
        return False

    def can_be_constant(self) -> bool:
        """Whether `as_constant` returns the object; a symbolic number is then specialised to its value at this call."""
        return self.is_constant()

    def as_constant(self) -> Any:
        """The real Python object, if it is known at compile time or `can_be_constant`."""
        self.unsupported("as a constant", kind=NOT_CONSTANT)

    def is_symbolic(self) -> bool:
        """Whether this is a symbolic number, which is specialised when its value is read."""
        return False

    def is_none(self) -> bool:
        return self.python_type() is type(None)

    def as_plain(self) -> Any:
        """A real object equal to this one if all of it is known; containers are copies.

        For pure functions only.
        """
        return self.as_constant()

    def as_proxy(self) -> Any:
        """The FX argument for this value (a Node, a constant, or nested containers of them)."""
        self.unsupported("as an argument of a graph operation")

    def describe(self) -> str:
        """A short description for messages."""
        where = f" from {self.source.name}" if self.source is not None else ""
        return f"{self.python_type().__name__}{where}"

    def unsupported(self, doing: str, *, kind: BreakKind = UNSUPPORTED_OPERATION) -> NoReturn:
        """Break the graph: this value does not support the operation."""
        raise GraphBreak(kind, f"{doing} on {self.describe()}")

    # Python's data model

    def getattr_(self, tr: Tracer, name: str) -> Value:
        """`self.name`; raises the program's AttributeError through `tr.raise_` when there is none."""
        self.unsupported(f"attribute {name!r}")

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        """`self.name = value`."""
        self.unsupported(f"setting attribute {name!r}")

    def delattr_(self, tr: Tracer, name: str) -> None:
        """`del self.name`."""
        self.unsupported(f"deleting attribute {name!r}")

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`self(*args, **kwargs)`."""
        self.unsupported("a call", kind=UNSUPPORTED_CALL)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`self.name(*args, **kwargs)`, without making a bound method in between."""
        return tr.call(self.getattr_(tr, name), args, kwargs)

    def call_method_first(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`call_method` as the first effect of an instruction: its breaks may be `before_effects`."""
        return self.call_method(tr, name, args, kwargs)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        """`self[key]`."""
        self.unsupported("indexing")

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        """`self[key] = value`."""
        self.unsupported("item assignment")

    def delitem(self, tr: Tracer, key: Value) -> None:
        """`del self[key]`."""
        self.unsupported("item deletion")

    def iter_(self, tr: Tracer) -> Value:
        """`iter(self)`: a value with `next_`."""
        self.unsupported("iteration")

    def next_(self, tr: Tracer) -> Value:
        """`next(self)`; raises the program's StopIteration through `tr.raise_` at the end."""
        self.unsupported("next()")

    def unpack(self, tr: Tracer) -> list[Value]:
        """All items, as `list(self)` would see them. The default breaks the graph: iterables override it."""
        self.unsupported("unpacking")

    def len_(self, tr: Tracer) -> Value:
        """`len(self)`."""
        self.unsupported("len()")

    def bool_(self, tr: Tracer) -> bool:
        """Truth, if known while tracing. An object without `__bool__` and `__len__` is true."""
        if any(not vars(base).keys().isdisjoint(("__bool__", "__len__")) for base in self.python_type().__mro__):
            self.unsupported("truth testing")
        return True

    def contains(self, tr: Tracer, item: Value) -> Value:
        """`item in self`."""
        self.unsupported("the `in` operator")

    def binary_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        """`self <op> other` where op is "+", "@", "<<" ...; None stands for NotImplemented."""
        return None

    def reflected_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        """`other <op> self` asked of the right operand; None stands for NotImplemented."""
        return None

    def inplace_op(self, tr: Tracer, op: str, other: Value) -> Value | None:
        """`self <op>= other` with op still written "+"; None: fall back to `binary_op`."""
        return None

    def unary_op(self, tr: Tracer, op: str) -> Value:
        """`-self`, `+self`, `~self` ("-", "+", "~")."""
        self.unsupported(f"unary {op}")

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        """`self <op> other` for "<", "<=", "==", "!=", ">", ">="; None stands for NotImplemented."""
        return None

    def hash_key(self, tr: Tracer) -> object:
        """A real hashable object that represents this value as a key; equal keys mean equal values."""
        self.unsupported("hashing")

    def guard_identity(self, tr: Tracer) -> None:
        """Guard the identity of the object, where other guards only check its behaviour."""

    def enter(self, tr: Tracer) -> Value:
        """`__enter__` of a context manager."""
        return self.call_method(tr, "__enter__", (), {})

    def exit_(self, tr: Tracer, args: Args) -> Value:
        """`__exit__(*args)` of a context manager."""
        return self.call_method(tr, "__exit__", args, {})

    # Optional operations of some families; asking adds no guard

    def real_object(self) -> Any:
        """The object itself, of those found at a source that may have several values. None of all others."""
        return None

    def builtin_contents(self) -> Value:
        """The builtin container inside an object whose class extends one; for other objects the value itself."""
        return self

    def is_same(self, other: Value) -> bool:
        """Whether two values of a trace represent one object."""
        return self is other

    def real_slice(self, tr: Tracer) -> slice | None:
        """The slice itself, to index with; None of other objects; the program's TypeError for wrong parts."""
        return None

    def has_known_order(self) -> bool:
        """Whether its iteration order is the same at every call."""
        return True

    def has_changed(self) -> bool:
        """Whether the trace has changed the contents of this container."""
        return False

    def size_now(self) -> int:
        """The current number of items, for iterators over items that are guarded."""
        self.unsupported("iteration")

    def item_now(self, tr: Tracer, index: int) -> Value:
        """The item at a valid index, for iterators by position."""
        self.unsupported("iteration by position")

    # C slots and methods of an object

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Call a C method, bypassing overrides of the object's own class; `found` names the class that has it."""
        raise GraphBreak(C_METHOD, f"{found.owner.__qualname__}.{name} of {self.describe()}")

    def read_c_data(self, tr: Tracer, found: Found, name: str) -> Value:
        """Read a slot, or an attribute that C code computes."""
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r} of {self.describe()}")

    def store_own(self, tr: Tracer, name: str, value: Value) -> None:
        """Store into the instance dictionary or slot, bypassing descriptors and `__setattr__`."""
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"storing {name!r} into {self.describe()}")

    # Reconstruction

    def referents(self) -> Iterable[Value]:
        """The values that `reconstruct` pushes as parts (items, cells, defaults); not attributes in the journal."""
        return ()

    def reconstruct(self, codegen: Codegen) -> None:
        """Push the real object in residual code. The default loads it from its source."""
        if self.source is None:
            raise NotImplementedError(f"{type(self).__name__}.reconstruct")
        load_source(codegen, self.source)
