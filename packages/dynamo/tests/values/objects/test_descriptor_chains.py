"""Descriptors around descriptors: classmethods, staticmethods and partialmethods of other objects than functions."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from driver import compiled, same

import framesmith_frames as frames

X = torch.arange(3.0)


class Meta(type):
    @property
    def above(cls) -> int:
        return cls.size + 100  # type: ignore[attr-defined, no-any-return]


class Named:
    """Returns the arguments of its `__get__`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return getattr(self, "name", None), obj is None, cls.__name__


class Called:
    def __call__(self, *args: Any) -> int:
        return len(args)


class Base(metaclass=Meta):
    size = 1
    by_property = classmethod(property(lambda cls: cls.size + 1))  # type: ignore[arg-type]
    by_descriptor = classmethod(Named())  # type: ignore[arg-type]
    by_static = classmethod(staticmethod(lambda *args: len(args)))
    by_class = classmethod(classmethod(lambda cls, *args: (cls.__name__, args)))  # type: ignore[arg-type]
    by_object = classmethod(Called())
    by_partial = classmethod(functools.partial(lambda *args: len(args), 1))
    static_object = staticmethod(Called())
    static_c = staticmethod(len)
    plain = Named()
    partial_of_class = functools.partialmethod(classmethod(lambda cls, a, b: (cls.__name__, a, b)), 4)
    partial_of_static = functools.partialmethod(staticmethod(lambda a, b: (a, b)), 4)
    partial_of_object = functools.partialmethod(Called(), 4)

    @functools.cached_property
    def cached(self) -> int:
        return self.size * 2

    @classmethod
    @functools.lru_cache
    def remembered(cls, k: int) -> Any:
        return cls.__name__, k


class Derived(Base):
    size = 10

    @classmethod
    def above_it(cls) -> Any:
        return super().by_property


CALLS = [
    "by_property", "by_static(1)", "by_class(1)", "by_object(1)", "by_partial(2)", "static_object(1)",
    "static_c([1])", "remembered(2)",
    "by_descriptor", "plain",
]  # fmt: skip
OF_INSTANCES = ["partial_of_class(2)", "partial_of_static(2)", "partial_of_object(2)", "cached"]
PROGRAMS = [
    *(f"{holder}.{call}" for call in CALLS for holder in ("Base", "Derived", "Base()", "Derived()", "a", "type(a)")),
    *(f"{holder}.{call}" for call in OF_INSTANCES for holder in ("Base()", "Derived()", "a")),
    "Derived.above_it()", "Base.above", "type(a).above", "hasattr(a, 'above')",
    "vars(Base)['by_property'].__func__.fget(Derived)",
]  # fmt: skip


@pytest.mark.parametrize("text", PROGRAMS)
def test_bound_as_python_binds(text: str) -> None:
    names: dict[str, Any] = {"Base": Base, "Derived": Derived}
    exec(
        f"def f(x, a):\n    try: return x + 1, {text}\n    except Exception as e: return x, type(e).__name__, str(e)",
        names,
    )
    frames.reset()
    subject = compiled(names["f"])
    for cls in (Base, Base, Derived):
        assert same(subject(X, cls()), names["f"](X, cls()))
