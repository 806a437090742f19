"""The value protocol: what the interpreter knows about a Python object while tracing.

Methods are named after Python's data model and take the tracer first. The defaults here refuse with a graph
break; a family of types overrides what it can do. Values never touch the interpreter's frames: everything
they may ask for is in `Tracer`.
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
    from framesmith_guards import ShapeExpr, Source
    from framesmith_sideeffects import Journal, Mutation

#: Instructions that one trace interprets at most: ten seconds' worth.
MAX_STEPS = 1_000_000
TOO_LONG = register_break(
    "trace-too-long",
    what="a function is traced that runs for very long, or for ever",
    why=f"a trace follows loops round by round; this one has come to {MAX_STEPS:,} instructions",
    hint="compute what loops over numbers outside the compiled function, or do in tensor operations what it does",
)

Args = Sequence["Value"]
Kwargs = Mapping[str, "Value"]


@dataclass(slots=True)
class CacheUse:
    """What a trace has asked one cached function for: the results by their keys, and whether one was not there."""

    results: dict[Any, Value] = field(default_factory=dict)
    missed: bool = False


@dataclass(slots=True)
class Memo:
    """What a trace has found out beside its guards and its journal. One trace, one memo; a restart begins a new one."""

    #: The path to each module and class of a trusted library; None for others.
    library_paths: dict[ModuleType | type, Source | None] = field(default_factory=dict)
    #: Where each class is found, and the classes whose layout is guarded.
    class_sources: dict[type, Source | None] = field(default_factory=dict)
    guarded_classes: set[type] = field(default_factory=set)
    #: Where each module's dictionary is found, by its id; and the values whose attribute dictionaries these are.
    namespaces: dict[int, Source] = field(default_factory=dict)
    instance_dicts: dict[int, Value] = field(default_factory=dict)
    #: Those that several objects have: none of them is changed.
    shared_dicts: set[int] = field(default_factory=set)
    #: The one value of each class.
    classes: dict[type, Value] = field(default_factory=dict)
    #: Existing objects used as keys that are told apart by identity.
    identity_keys: dict[int, Value] = field(default_factory=dict)
    #: Modules, with one of their hook dictionaries, whose hooks are counted; and whether the global ones are.
    counted_hooks: set[tuple[int, str]] = field(default_factory=set)
    counted_global_hooks: bool = False
    #: What entering an existing autocast context gave, by the id of its value.
    entered_autocast: dict[int, list[Any]] = field(default_factory=dict)
    #: What a call into C code holds while it runs the program's code: the iterators that it takes items from.
    working: list[Value] = field(default_factory=list)
    #: Texts met at sources of which only the type is relied on so far.
    unread_strings: dict[Source, type] = field(default_factory=dict)
    #: Whether tensors without dimensions are places in subscripts, as in functions of single elements.
    elementwise_subscripts: bool = False
    #: How many bodies of function transforms are being traced, each within the one before.
    transforms: int = 0
    #: How many of them are differentiated: their tensors have histories that the trace's have not.
    differentiated: int = 0
    #: The numbers that tensors without dimensions are known to hold: by the id of the tensor's ref, as of a version.
    tensor_items: dict[int, tuple[Value, int, Value]] = field(default_factory=dict)
    #: The calls of each cached function, by its id; the results of those whose bodies were interpreted, with what is
    #: expected of their caches, by the value's id; and how many such bodies are open.
    caches: dict[int, CacheUse] = field(default_factory=dict)
    cached_results: dict[int, tuple[Value, Any]] = field(default_factory=dict)
    in_cached_call: int = 0
    #: Cached functions, by id, whose new results are needed after the trace: calls that make them end the graph.
    called_for_real: set[int] = field(default_factory=set)
    #: How many instructions the trace has interpreted, and items it has taken of iterators for functions written in C.
    steps: int = 0

    def step(self) -> None:
        """Count one instruction or item. Breaks where the trace may have no end."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise GraphBreak(TOO_LONG)


class Tracer(Protocol):
    """What a value may ask of the interpreter that is running it."""

    @property
    def journal(self) -> Journal:
        """Mutations seen so far in this trace."""

    @property
    def globals(self) -> dict[str, Any]:
        """The globals of the Python frame now being interpreted."""

    def wrap(self, obj: object, source: Source) -> Value:
        """The value standing for `obj`, found at `source`; guards what the trace relies on. Same object, same value."""

    def constant(self, obj: object) -> Value:
        """A value for a Python object made while tracing or known immutable (int, str, dtype, tuple of those...)."""

    def guard(self, source: Source, kind: str, expected: object = None) -> None:
        """Make the compiled code apply only while this holds; nothing is noted where that is settled already."""

    def call(self, fn: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call any value: the interpreter's single entry for calls (records the current call for messages)."""

    def inline(self, function: FunctionType, bound: Mapping[str, Value], closure: Sequence[Value]) -> Value:
        """Interpret a Python function's body in a child frame and give what it returns.

        `bound` maps each argument name (`*args` and `**kwargs` included) to its value: `values/functions.py` has
        bound them, defaults filled in. `closure` holds one `CellValue` for each of `function.__code__.co_freevars`.
        """

    def tensor_input(self, obj: torch.Tensor, source: Source) -> Value:
        """The value of a real tensor found at `source`: guarded, with a fake, and a placeholder once it is used."""

    def super_arguments(self) -> tuple[Value, Value]:
        """What `super()` without arguments uses here: the `__class__` cell's contents, the first argument."""

    @property
    def operations(self) -> int:
        """How many operations the graph has."""

    def own_variables(self) -> dict[str, Value] | None:
        """The variables of the running function that have a value; None where it has asked for them before."""

    def exception_now(self) -> Value | None:
        """The exception that the program is handling, or None, which is relied on to be so around the call, too."""

    @property
    def root_globals(self) -> dict[str, Any]:
        """The globals of the frame being compiled."""

    @property
    def memo(self) -> Memo:
        """What the trace has found out so far, shared by all its frames."""

    def call_torch(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value:
        """Put a call into the graph: `target` is a torch function, or a str naming a tensor method (self first).

        Arguments are values or nested lists/tuples/dicts of values; runs on fake tensors to learn the result; tensors
        (also inside tuples and lists) come back as values, non-tensor results as constants. Every tensor value is a
        `values.tensor.TensorValue(ref, source=...)` around a `graph.TensorRef` (`.fake`, `.node`).
        """

    def number_input(self, obj: int | float, source: Source) -> Value | None:
        """The value of a number found at `source` that changes from call to call; None of one that stays."""

    def symbol(self, number: Any) -> Value:
        """The value of a symbolic number of this trace; the same symbol, the same value."""

    def expression(self, number: Any) -> ShapeExpr | None:
        """A symbolic integer as an expression of the inputs' sizes and numbers; None of an unbacked one."""

    def hint_at(self, source: Source) -> int | float | bool | None:
        """What is at the source of a symbol in the call compiled for."""

    def compute_number(self, function: Callable[..., Any], name: str, operands: Sequence[Any]) -> Value | None:
        """The number that a function gives when the graph runs, for numbers some of which are symbolic.

        `name` is that of the function in `framesmith_guards.kinds.shapes.EXACT`. None where it raises for the numbers
        of this call, or gives none: then the numbers have to be known.
        """

    def emit_state(self, target: Any, *args: Any) -> Any:
        """Put a call that changes torch's global state into the graph, and make it now.

        `target` is `torch._C._set_grad_enabled` and the like; arguments are plain, or results of earlier `emit_state`
        calls; the real result comes back. The state before the trace is restored when the trace ends.
        """

    def raise_(self, exc_type: type[BaseException], *args: object) -> NoReturn:
        """Raise an exception in the traced program (it may be caught there)."""


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a class dictionary: the class that has it and the raw object (descriptors not called)."""

    owner: type
    raw: Any


class TracedRaise(Exception):
    """An exception of the traced program, on its way through interpreted frames. `value` is the exception's value."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


class Value:
    """A Python object as the tracer sees it.

    `source`: where the object can be loaded from when the compiled code runs, or None when it was made in the trace.
    `mutation`: the journal's record when this object may be mutated (containers, objects, cells), else None.
    """

    #: Python types this family stands for, when they are fixed. `python_type` gives the first unless it is overridden.
    python_types: ClassVar[tuple[type, ...]] = ()
    #: Whether None from an operator method is Python's NotImplemented (both: TypeError), not a gap of the tracer's.
    exact_operators: ClassVar[bool] = False
    #: Counts the changes of a container that an iterator over it notices.
    version: int = 0

    __slots__ = ("mutation", "source")

    def __init__(self, *, source: Source | None = None, mutation: Mutation | None = None) -> None:
        self.source = source
        self.mutation = mutation

    # What it is

    def python_type(self) -> type:
        """The type `type(obj)` would give."""
        return self.python_types[0]

    def is_constant(self) -> bool:
        """Whether the object is known whatever the call: `as_constant` gives it and relies on nothing more."""
        return False

    def can_be_constant(self) -> bool:
        """Whether `as_constant` gives the object: of a number that changes, the one at this call, and a guard."""
        return self.is_constant()

    def as_constant(self) -> Any:
        """The real Python object, when it is known at compile time or `can_be_constant`."""
        self.refuse("as a constant", kind=NOT_CONSTANT)

    def is_symbolic(self) -> bool:
        """Whether this is a number that changes from call to call, which becomes known when it is asked for."""
        return False

    def is_none(self) -> bool:
        """Whether this is None."""
        return self.python_type() is type(None)

    def as_plain(self) -> Any:
        """A real object equal to this one when everything in it is known; containers come as copies.

        For pure functions only.
        """
        return self.as_constant()

    def as_proxy(self) -> Any:
        """The FX argument standing for this value (a Node, a constant, or nested containers of them)."""
        self.refuse("as an argument of a graph operation")

    def describe(self) -> str:
        """A short text for messages."""
        where = f" from {self.source.name}" if self.source is not None else ""
        return f"{self.python_type().__name__}{where}"

    def refuse(self, doing: str, *, kind: BreakKind = UNSUPPORTED_OPERATION) -> NoReturn:
        """Break the graph: this value does not support what was asked."""
        raise GraphBreak(kind, f"{doing} on {self.describe()}")

    # Python's data model

    def getattr_(self, tr: Tracer, name: str) -> Value:
        """`self.name`; raises the program's AttributeError through `tr.raise_` when there is none."""
        self.refuse(f"attribute {name!r}")

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        """`self.name = value`."""
        self.refuse(f"setting attribute {name!r}")

    def delattr_(self, tr: Tracer, name: str) -> None:
        """`del self.name`."""
        self.refuse(f"deleting attribute {name!r}")

    def call(self, tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """`self(*args, **kwargs)`."""
        self.refuse("a call", kind=UNSUPPORTED_CALL)

    def call_method(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`self.name(*args, **kwargs)`, without making a bound method in between."""
        return tr.call(self.getattr_(tr, name), args, kwargs)

    def call_method_first(self, tr: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`call_method` as the first thing that an instruction does: its breaks may be `before_effects`."""
        return self.call_method(tr, name, args, kwargs)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        """`self[key]`."""
        self.refuse("indexing")

    def setitem(self, tr: Tracer, key: Value, value: Value) -> None:
        """`self[key] = value`."""
        self.refuse("item assignment")

    def delitem(self, tr: Tracer, key: Value) -> None:
        """`del self[key]`."""
        self.refuse("item deletion")

    def iter_(self, tr: Tracer) -> Value:
        """`iter(self)`: a value with `next_`."""
        self.refuse("iteration")

    def next_(self, tr: Tracer) -> Value:
        """`next(self)`; raises the program's StopIteration through `tr.raise_` at the end."""
        self.refuse("next()")

    def unpack(self, tr: Tracer) -> list[Value]:
        """All items, as `list(self)` would see them. Containers override it; the default drives the iterator."""
        self.refuse("unpacking")

    def len_(self, tr: Tracer) -> Value:
        """`len(self)`."""
        self.refuse("len()")

    def bool_(self, tr: Tracer) -> bool:
        """Truth, when it is known while tracing. What has neither `__bool__` nor `__len__` is true."""
        if any(not vars(base).keys().isdisjoint(("__bool__", "__len__")) for base in self.python_type().__mro__):
            self.refuse("truth testing")
        return True

    def contains(self, tr: Tracer, item: Value) -> Value:
        """`item in self`."""
        self.refuse("the `in` operator")

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
        self.refuse(f"unary {op}")

    def compare(self, tr: Tracer, op: str, other: Value) -> Value | None:
        """`self <op> other` for "<", "<=", "==", "!=", ">", ">="; None stands for NotImplemented."""
        return None

    def hash_key(self, tr: Tracer) -> object:
        """A real hashable object standing for this value as a dict key or set member; equal keys mean equal values."""
        self.refuse("hashing")

    def pin(self, tr: Tracer) -> None:
        """Rely on meeting this very object again, where guards only tell what it does."""

    def enter(self, tr: Tracer) -> Value:
        """`__enter__` of a context manager."""
        return self.call_method(tr, "__enter__", (), {})

    def exit_(self, tr: Tracer, args: Args) -> Value:
        """`__exit__(*args)` of a context manager."""
        return self.call_method(tr, "__exit__", args, {})

    # What some families offer; asking relies on nothing

    def real_object(self) -> Any:
        """The object itself, of those met at a source that may have several values. None of all others."""
        return None

    def builtin_contents(self) -> Value:
        """The builtin container in it, of an object whose class extends one; of all others the value itself."""
        return self

    def is_same(self, other: Value) -> bool:
        """Whether two values of a trace stand for one object, whatever is known of its place."""
        return self is other

    def real_slice(self, tr: Tracer) -> slice | None:
        """The slice itself, to index with, or None of what is no slice; the program's TypeError for wrong parts."""
        return None

    def has_known_order(self) -> bool:
        """Whether the order in which it is iterated over is the same at every call."""
        return True

    def has_changed(self) -> bool:
        """Whether the trace has changed the contents of this container."""
        return False

    def size_now(self) -> int:
        """The present number of items, for iterators over items that are guarded."""
        self.refuse("iteration")

    def item_now(self, tr: Tracer, index: int) -> Value:
        """The item at a real, valid index, for iterators by position."""
        self.refuse("iteration by position")

    # What C code keeps of an object, and does with it

    def call_c_method(self, tr: Tracer, found: Found, name: str, args: Args, kwargs: Kwargs) -> Value:
        """A method implemented in C, whatever the object's own class overrides; `found` says which class has it."""
        raise GraphBreak(C_METHOD, f"{found.owner.__qualname__}.{name} of {self.describe()}")

    def read_c_data(self, tr: Tracer, found: Found, name: str) -> Value:
        """A slot, or an attribute that C code computes."""
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"{name!r} of {self.describe()}")

    def store_own(self, tr: Tracer, name: str, value: Value) -> None:
        """Store into the instance dictionary or slot, past descriptors and `__setattr__`."""
        raise GraphBreak(OPAQUE_DESCRIPTOR, f"storing {name!r} into {self.describe()}")

    # Back to bytecode

    def referents(self) -> Iterable[Value]:
        """The values `reconstruct` pushes on the way (items, cells, defaults); not attributes in the journal."""
        return ()

    def reconstruct(self, codegen: Codegen) -> None:
        """Push the real object when the compiled code runs. The default loads it from its source."""
        if self.source is None:
            raise NotImplementedError(f"{type(self).__name__}.reconstruct")
        load_source(codegen, self.source)
