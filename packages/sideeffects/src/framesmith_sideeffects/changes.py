"""Kinds of change.

A replay pushes the operands of all changes before it applies any, so that every operand is read from the state before
the first change. `push` leaves one block of operands on the stack, `apply` consumes exactly that block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from framesmith_sideeffects.contents import row_for
from framesmith_sideeffects.load_source import load_source
from framesmith_sideeffects.protocol import Deleted, TracedContainer, TracedValue

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen
    from framesmith_guards import Source


class Change(Protocol):
    """One entry of the journal."""

    @property
    def target(self) -> TracedValue | None:
        """The value that changes; None for globals and calls, which always count."""

    def operands(self) -> Iterator[TracedValue]:
        """Values that become reachable through the change."""

    def push(self, codegen: Codegen) -> None:
        """Push the operands."""

    def apply(self, codegen: Codegen) -> None:
        """Consume the operands and change the object."""


def call_and_drop(codegen: Codegen, argc: int) -> None:
    """Call with `argc` arguments and drop the result."""
    codegen.call(argc)
    codegen.pop()


@dataclass(frozen=True, slots=True)
class ContentsChange:
    """The contents of a container that exists (or, with `made_empty`, of one that the replay has just made empty)."""

    target: TracedValue
    version: int
    made_empty: bool = False

    @property
    def container(self) -> TracedContainer:
        """The target, seen as a container."""
        return cast(TracedContainer, self.target)

    def operands(self) -> Iterator[TracedValue]:
        yield from self.target.referents()

    def push(self, codegen: Codegen) -> None:
        items = None if self.made_empty else self.container.item_changes()
        if items is not None:
            self._push_items(codegen, items)
            return
        row = row_for(self.container.contents_type())
        codegen.push_function(row.fill)
        codegen(self.target)
        self.container.reconstruct_contents(codegen)
        if not self.made_empty:
            codegen.push_function(row.clear)
            codegen(self.target)

    def _push_items(self, codegen: Codegen, items: Sequence[tuple[TracedValue, TracedValue | Deleted]]) -> None:
        row = row_for(self.container.contents_type())
        for key, value in reversed(items):
            function = row.del_item if isinstance(value, Deleted) else row.set_item
            if function is None:
                raise TypeError(f"{self.container.contents_type().__qualname__} has no single items to write")
            codegen.push_function(function)
            codegen(self.target)
            codegen(key)
            if not isinstance(value, Deleted):
                codegen(value)

    def apply(self, codegen: Codegen) -> None:
        items = None if self.made_empty else self.container.item_changes()
        if items is not None:
            for _, value in items:
                call_and_drop(codegen, 2 if isinstance(value, Deleted) else 3)
            return
        if not self.made_empty:
            call_and_drop(codegen, 1)
        call_and_drop(codegen, 2)


def store_in_dict(obj: Any, name: str, value: object) -> None:
    """Store into an instance's dictionary, bypassing a descriptor of its class with the same name."""
    obj.__dict__[name] = value


def delete_from_dict(obj: Any, name: str) -> None:
    """Delete from an instance's dictionary, bypassing a descriptor of its class with the same name."""
    del obj.__dict__[name]


@dataclass(frozen=True, slots=True)
class AttributeChange:
    """An attribute stored or deleted.

    `deletes`: the object has it and loses it first; a store afterwards moves it to the end of `__dict__`.
    """

    target: TracedValue
    name: str
    new: TracedValue | Deleted
    deletes: bool = False

    @property
    def raw(self) -> bool:
        """Whether the class has a `__setattr__` or a descriptor that the store must bypass."""
        mutation = self.target.mutation
        return mutation is not None and (mutation.raw_attributes or mutation.hides(self.name))

    @property
    def writers(self) -> tuple[Callable[..., object], Callable[..., object]]:
        """Functions that store and delete, bypassing the definitions of the class."""
        mutation = self.target.mutation
        if mutation is not None and mutation.hides(self.name):
            return store_in_dict, delete_from_dict
        return object.__setattr__, object.__delattr__

    def operands(self) -> Iterator[TracedValue]:
        if not isinstance(self.new, Deleted):
            yield self.new

    def push(self, codegen: Codegen) -> None:
        if not isinstance(self.new, Deleted):
            self._push_store(codegen, self.new)
        if self.deletes:
            self._push_delete(codegen)

    def _push_store(self, codegen: Codegen, new: TracedValue) -> None:
        if self.raw:
            codegen.push_function(self.writers[0])
            codegen(self.target)
            codegen.load_const(self.name)
            codegen(new)
        else:
            codegen(new)
            codegen(self.target)

    def _push_delete(self, codegen: Codegen) -> None:
        if self.raw:
            codegen.push_function(self.writers[1])
        codegen(self.target)
        if self.raw:
            codegen.load_const(self.name)

    def apply(self, codegen: Codegen) -> None:
        if self.deletes:
            if self.raw:
                call_and_drop(codegen, 2)
            else:
                codegen.delete_attr(self.name)
        if isinstance(self.new, Deleted):
            return
        if self.raw:
            call_and_drop(codegen, 3)
        else:
            codegen.store_attr(self.name)


@dataclass(frozen=True, slots=True)
class GlobalChange:
    """A global variable stored or deleted; `source` names the globals dict, None for that of the running code.

    `deletes`: it exists and is deleted first; a store afterwards moves it to the end of the dict.
    """

    source: Source | None
    name: str
    new: TracedValue | Deleted
    deletes: bool = False

    @property
    def target(self) -> TracedValue | None:
        return None

    def operands(self) -> Iterator[TracedValue]:
        if not isinstance(self.new, Deleted):
            yield self.new

    def push(self, codegen: Codegen) -> None:
        if not isinstance(self.new, Deleted):
            codegen(self.new)
            self._push_owner(codegen)
        if self.deletes:
            self._push_owner(codegen)

    def _push_owner(self, codegen: Codegen) -> None:
        if self.source is not None:
            load_source(codegen, self.source)

    def apply(self, codegen: Codegen) -> None:
        if self.deletes:
            (codegen.delete_global if self.source is None else codegen.delete_item)(self.name)
        if not isinstance(self.new, Deleted):
            (codegen.store_global if self.source is None else codegen.store_item)(self.name)


@dataclass(frozen=True, slots=True)
class CallChange:
    """A call to repeat for its effect alone, such as registering a hook; the result is dropped."""

    function: Callable[..., Any]
    args: tuple[TracedValue, ...]

    @property
    def target(self) -> TracedValue | None:
        return None

    def operands(self) -> Iterator[TracedValue]:
        yield from self.args

    def push(self, codegen: Codegen) -> None:
        codegen.push_function(self.function)
        for arg in self.args:
            codegen(arg)

    def apply(self, codegen: Codegen) -> None:
        call_and_drop(codegen, len(self.args))
