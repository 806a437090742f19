"""The owner of each `__dict__` in use, for the case that the program also uses the dictionary by itself."""

from __future__ import annotations

from typing import Any, NoReturn

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.base import Tracer

INSTANCE_DICT = register_break(
    "instance-dict",
    what="an object's __dict__ is used in a way that cannot be followed",
    why="the tracer stores attributes in its journal, not in a dictionary",
    hint="use getattr and setattr",
)


def note_instance_dict(tr: Tracer, owner: Any) -> None:
    """Record the owner of an instance dictionary."""
    entries = owner.entries()
    if entries is None:
        return
    if tr.journal.value_of(entries) is not None:
        raise GraphBreak(INSTANCE_DICT, f"{owner.describe()} is used after its __dict__ was used by itself")
    other = tr.facts.instance_dicts.setdefault(id(entries), owner)
    if other is not owner:
        tr.facts.shared_dicts.add(id(entries))
        if other.mutation is not None:
            refuse_shared(owner)


def refuse_shared(owner: Any) -> NoReturn:
    """Break where an object changes that shares its `__dict__` with another object."""
    raise GraphBreak(INSTANCE_DICT, f"{owner.describe()} has the same __dict__ as another object")
