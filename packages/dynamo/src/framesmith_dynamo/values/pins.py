"""Guards that a trusted library still keeps what was found in its modules and classes.

Nobody but a program that patches a library changes them, so the guards hang on the library's dictionaries, one for
each entry that the trace used, whoever used it: dictionaries that did not change are skipped as a whole.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from framesmith_dynamo.values.lookup import home_source
from framesmith_guards import AttrSource, InstanceDictSource, ItemSource, ModuleSource

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer
    from framesmith_guards import Source

#: What a program patches, and what can be referred to weakly.
PINNED: Final = (FunctionType, BuiltinFunctionType, type, property, classmethod, staticmethod)


def pin(tr: Tracer, holder: ModuleType | type, name: str, entry: Any) -> None:
    """Rely on `entry` being what the holder's dictionary has under the name."""
    key = ("pins", holder, name)
    if key in tr.memo or not issubclass(type(entry), PINNED):
        return
    tr.memo[key] = True
    where = dictionary_path(tr, holder)
    if where is None:
        return
    source = ItemSource(InstanceDictSource(where), name)
    if isinstance(entry, FunctionType | BuiltinFunctionType | type):
        tr.guard(source, "ID_MATCH", entry)
    else:
        for part in ("fget",) if isinstance(entry, property) else ("__func__",):
            held = getattr(entry, part)
            if isinstance(held, FunctionType):
                tr.guard(AttrSource(source, part), "ID_MATCH", held)


def dictionary_path(tr: Tracer, holder: ModuleType | type) -> Source | None:
    """Where a module or class is, as a path through dictionaries."""
    key = ("pins", holder)
    if key not in tr.memo:
        tr.memo[key] = through_dictionaries(home_source(holder))
    found: Source | None = tr.memo[key]
    return found


def through_dictionaries(source: Source | None) -> Source | None:
    """A path of attributes, as one of items of `__dict__`s."""
    if source is None or isinstance(source, ModuleSource):
        return source
    assert isinstance(source, AttrSource)
    base = through_dictionaries(source.base)
    return None if base is None else ItemSource(InstanceDictSource(base), source.attr)
