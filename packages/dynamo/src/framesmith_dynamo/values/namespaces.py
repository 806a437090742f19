"""The dictionaries of modules: names read and stored, in any spelling.

`x` and `global x` in a function, `module.x`, `globals()["x"]`, `vars(module)["x"]`: one dictionary, one source of each
entry, one journal of its changes.
"""

from __future__ import annotations

import builtins
import sys
import types
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.lookup.entries import value_at
from framesmith_dynamo.values.lookup.libraries import is_library_code, is_trusted
from framesmith_guards import (
    AttrSource,
    BuiltinSource,
    FunctionSource,
    GlobalsDictSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    ModuleSource,
)
from framesmith_sideeffects import DELETED

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer, Value
    from framesmith_guards import Source

FOREIGN_GLOBALS = register_break(
    "foreign-globals",
    what="a global of a namespace that no imported module owns",
    why="compiled code has no way to find the namespace again",
    hint="import the function from a module instead of exec'ing it into a dictionary",
)

IMPORT_RUNS_CODE = register_break(
    "import-runs-code",
    what="a module is imported for the first time",
    why="importing runs the module's code",
    hint="import the module before the first compiled call; read a name that is imported lazily once before",
)

Entries = dict[str, Any]
#: The type of a name that is imported when it is first read (PEP 810, CPython 3.15).
LAZY_IMPORT: Final[type | None] = getattr(types, "LazyImportType", None)


def dictionary_of(module: ModuleType) -> Entries:
    """Return a module's dictionary, bypassing its own attribute look-up."""
    entries: Entries = ModuleType.__getattribute__(module, "__dict__")
    return entries


def import_name(entries: Entries) -> str | None:
    """Return the name under which the module with this dictionary is imported, or None."""
    for name in (entries.get("__name__"), getattr(entries.get("__spec__"), "name", None)):
        module = sys.modules.get(name) if isinstance(name, str) else None
        if issubclass(type(module), ModuleType) and dictionary_of(module) is entries:  # type: ignore[arg-type]
            return name
    return None


def namespace_source(tr: Tracer, entries: Entries) -> Source:
    """Return the source of a module's dictionary, the same throughout a trace."""
    sources = tr.facts.namespaces
    if id(entries) not in sources:
        name = import_name(entries)
        if entries is tr.root_globals and not is_trusted(name):
            source: Source = GlobalsDictSource()
        elif name is not None:
            path = ModuleSource(name)
            if not is_trusted(name):
                tr.guard(path, "ID_MATCH", sys.modules[name])
            source = InstanceDictSource(path)
        else:
            raise GraphBreak(FOREIGN_GLOBALS, f"globals of {entries.get('__name__')}")
        sources[id(entries)] = source
    return sources[id(entries)]


def note_owner(tr: Tracer, entries: Entries, function: Source) -> None:
    """Record a called function as the source of its globals, if no imported module owns them.

    Examples are the forward of an `fx.GraphModule`, the `__new__` of a named tuple, and code run by exec. Functions are
    guarded by their code, so that another function with the same globals must have them at the next call, too.
    """
    if entries is tr.root_globals or import_name(entries) is not None:
        return
    found = AttrSource(function, "__globals__")
    known = tr.facts.namespaces.setdefault(id(entries), found)
    if known != found:
        tr.guard(found, "DUPLICATE_INPUT", known)


def entry_source(tr: Tracer, entries: Entries, name: str) -> Source:
    """Return the source of an entry of a module's dictionary."""
    owner = namespace_source(tr, entries)
    if isinstance(owner, GlobalsDictSource):
        return GlobalSource(name)
    if isinstance(owner.base, ModuleSource) and is_trusted(owner.base.module) and not is_library_code(entries[name]):
        return AttrSource(owner.base, name)  # set by a program: no entry of the library
    return ItemSource(owner, name)


def load(tr: Tracer, entries: Entries, name: str) -> Value | None:
    """Return the current value of a name in a module's dictionary, or None; `guard_absence` guards the latter.

    Breaks at a name that is imported when Python reads it: code that reads it elsewhere would import it there.
    """
    pending = tr.journal.load_global(entries, name)
    if pending is not None:
        return None if pending is DELETED else pending
    if type(entries.get(name)) is LAZY_IMPORT:
        raise GraphBreak(IMPORT_RUNS_CODE, f"{name}, which is imported lazily")
    return value_at(tr, entries[name], entry_source(tr, entries, name)) if name in entries else None


def guard_absence(tr: Tracer, entries: Entries, name: str) -> None:
    """Guard that a user's module has no such entry, and that its dictionary computes none."""
    if tr.journal.load_global(entries, name) is None and not is_trusted(entries.get("__name__")):
        owner = namespace_source(tr, entries)
        if not isinstance(owner, InstanceDictSource):  # those of modules are plain
            tr.guard(owner, "TYPE_MATCH", dict)
        tr.guard(owner, "DICT_NOT_CONTAINS", name)


def store(tr: Tracer, entries: Entries, name: str, value: Value) -> None:
    """Record the store of an entry in the journal."""
    tr.journal.store_global(entries, name, value, journal_source(tr, entries))


def delete(tr: Tracer, entries: Entries, name: str) -> None:
    """Record the deletion of an existing entry in the journal; its presence before the trace is guarded."""
    tr.guard(namespace_source(tr, entries), "DICT_CONTAINS" if name in entries else "DICT_NOT_CONTAINS", name)
    tr.journal.delete_global(entries, name, journal_source(tr, entries))


def journal_source(tr: Tracer, entries: Entries) -> Source | None:
    """Return the source of the dictionary in residual code: None for its own globals."""
    return None if entries is tr.root_globals else namespace_source(tr, entries)


def load_builtin(tr: Tracer, entries: Entries, name: str) -> Value | None:
    """Return the value of a builtin as functions with these globals see it, or None."""
    namespace = builtins_of(entries)
    if namespace is not vars(builtins):
        return load_foreign_builtin(tr, namespace, name)
    value = load(tr, namespace, name)
    if value is None and name not in namespace:
        tr.guard(namespace_source(tr, namespace), "DICT_NOT_CONTAINS", name)
    return value


def load_foreign_builtin(tr: Tracer, namespace: Entries, name: str) -> Value | None:
    """Return the value of a builtin in a dictionary that a program has set as `__builtins__`."""
    if namespace is not builtins_of(tr.root_globals):
        raise GraphBreak(FOREIGN_GLOBALS, "builtins of a module of its own")
    if name in namespace:
        return value_at(tr, namespace[name], BuiltinSource(name))
    tr.guard(AttrSource(FunctionSource(), "__builtins__"), "DICT_NOT_CONTAINS", name)
    return None


def builtins_of(entries: Entries) -> Entries:
    """Return the builtins that functions with these globals see."""
    own = entries.get("__builtins__", builtins)
    return own if isinstance(own, dict) else dictionary_of(own)
