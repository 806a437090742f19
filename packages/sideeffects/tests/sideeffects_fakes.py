"""Values of a tiny tracer: enough to journal mutations and replay them in generated code."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from framesmith_bytecode import Codegen, encode
from framesmith_guards import LocalSource, Source
from framesmith_sideeffects import Deleted, Journal, Mutation, Replay, load_source


class Fake:
    """A value; found ones have a source."""

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.mutation: Mutation | None = None

    def referents(self) -> Iterable[Any]:
        return ()

    def reconstruct(self, codegen: Codegen) -> None:
        assert self.source is not None
        load_source(codegen, self.source)


class Constant(Fake):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.load_const(self.value)


class Container(Fake):
    """A list, set or deque by items, or a dict by pairs flattened."""

    def __init__(self, cls: type, items: Sequence[Any] = (), source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.items = list(items)
        self.single: list[tuple[Any, Any | Deleted]] | None = None

    def saved(self) -> object:
        return list(self.items)

    def restore(self, saved: Any) -> None:
        self.items = list(saved)

    def referents(self) -> Iterable[Any]:
        return self.items

    def contents_type(self) -> type:
        return self.cls

    def item_changes(self) -> Sequence[tuple[Any, Any | Deleted]] | None:
        return self.single

    def reconstruct_contents(self, codegen: Codegen) -> None:
        for item in self.items:
            codegen(item)
        if issubclass(self.cls, dict):
            codegen.build("map", len(self.items) // 2)
        else:
            codegen.build("set" if self.cls is set else "list", len(self.items))

    def reconstruct_empty(self, codegen: Codegen) -> None:
        codegen.push_callable(lambda: codegen.load_const(self.cls))
        codegen.call(0)

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            super().reconstruct(codegen)
        elif self.cls in (deque, OrderedDict):
            codegen.push_callable(lambda: codegen.load_const(self.cls))
            self.reconstruct_contents(codegen)
            codegen.call(1)
        else:
            self.reconstruct_contents(codegen)


class Tuple(Fake):
    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__()
        self.items = list(items)

    def referents(self) -> Iterable[Any]:
        return self.items

    def reconstruct(self, codegen: Codegen) -> None:
        for item in self.items:
            codegen(item)
        codegen.build("tuple", len(self.items))


class NewObject(Fake):
    """An object (or cell) made in the trace by a class without arguments, bypassing its `__init__`."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self.cls = cls

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_callable(lambda: codegen.load_const(CellType if self.cls is CellType else object.__new__))
        if self.cls is CellType:
            codegen.call(0)
            return
        codegen.load_const(self.cls)
        codegen.call(1)


def existing(journal: Journal, name: str, obj: Any) -> Fake:
    """The tracked value of an argument."""
    source = LocalSource(name)
    flat = [Constant(x) for pair in obj.items() for x in pair] if isinstance(obj, dict) else None
    if flat is None and isinstance(obj, list | set | deque):
        flat = [Constant(item) for item in obj]
    value = Fake(source) if flat is None else Container(type(obj), flat, source)
    journal.track_existing(value, obj)
    return value


def new(journal: Journal, cls: type, items: Sequence[Any] = ()) -> Container:
    """A tracked container made in the trace."""
    value = Container(cls, items)
    journal.track_new(value)
    return value


def function_of(
    journal: Journal,
    argnames: Sequence[str],
    result: Any = None,
    *,
    globals: dict[str, Any] | None = None,
    before: Callable[[Codegen], None] | None = None,
) -> FunctionType:
    """A function that carries out the journal and returns `result`, saved before anything changes."""
    namespace = {} if globals is None else globals
    codegen = Codegen(argnames)
    if before is not None:
        before(codegen)
    returned = Constant(None) if result is None else result
    journal.prune([returned])
    run = Replay(journal, codegen)
    run.make()
    codegen(returned)
    run.apply()
    codegen.return_value()
    code = encode(codegen.bytecode("replayed"))
    assert isinstance(code, CodeType)
    return FunctionType(code, namespace)
