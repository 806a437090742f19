"""The journal's record of one mutable object: its origin, and the way to write its attributes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType


class Origin(Enum):
    """Whether an object is older than the trace."""

    EXISTING = "existing"
    NEW = "new"


class NotTracked(TypeError):
    """A mutation of a value that the journal does not track: it is immutable."""


@dataclass(frozen=True, slots=True, eq=False)
class Mutation:
    """The `mutation` field of a value tracked by a journal.

    `raw_attributes`: the class overrides `__setattr__` or `__delattr__` in Python. The tracer has interpreted those; a
    replay bypasses them.
    """

    origin: Origin
    cls: type | None
    raw_attributes: bool

    def hides(self, name: str) -> bool:
        """Whether a data descriptor written in Python hides the instance's attribute `name`."""
        if self.cls is None:
            return False
        raw = next((base.__dict__[name] for base in self.cls.__mro__ if name in base.__dict__), None)
        if raw is None or isinstance(raw, MemberDescriptorType | GetSetDescriptorType):
            return False
        return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")

    @property
    def is_new(self) -> bool:
        return self.origin is Origin.NEW


def mutation_of(origin: Origin, cls: type | None) -> Mutation:
    """The record for an object of a class (None: a builtin container or cell, whose attributes are not written)."""
    overridden = cls is not None and any(
        isinstance(getattr(cls, name), FunctionType) for name in ("__setattr__", "__delattr__")
    )
    return Mutation(origin, cls, overridden)
