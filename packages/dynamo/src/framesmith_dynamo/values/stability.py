"""Which sources need no guard: what a trusted library keeps in its modules and classes while a program runs.

Functions and classes of torch, transformers and the standard library are not replaced in a running program;
`framesmith.reset()` is
for those who do replace them. Everything a user's own modules and classes hold is guarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from framesmith_dynamo.values.lookup import is_trusted
from framesmith_guards import AttrSource, BuiltinSource, GlobalSource, InstanceDictSource, ItemSource, ModuleSource

if TYPE_CHECKING:
    from framesmith_dynamo.values.base import Tracer
    from framesmith_guards import Source


def mark_stable(tr: Tracer, source: Source | None) -> None:
    """Declare that what `source` names cannot change while its root's guards hold."""
    if source is not None:
        tr.memo["stable", source] = True


def is_stable(tr: Tracer, source: Source | None) -> bool:
    """Whether identity guards on `source` can be left out. None (an object the trace holds itself) is stable."""
    if source is None or isinstance(source, BuiltinSource) or ("stable", source) in tr.memo:
        return True
    root = source.root
    if isinstance(root, ModuleSource):
        return is_trusted(root.module) and is_module_path(source)
    if isinstance(root, GlobalSource):
        return source is root and is_trusted(tr.globals.get("__name__"))
    return False


def is_module_path(source: Source) -> bool:
    """Whether a path names a module, something in a module's namespace, or a part (`__defaults__` ...) of that."""
    while isinstance(source, AttrSource) and source.attr.startswith("__"):
        source = source.base
    if isinstance(source, ItemSource) and isinstance(source.base, InstanceDictSource):
        source = source.base.base
    elif isinstance(source, AttrSource):
        source = source.base
    return isinstance(source, ModuleSource)
