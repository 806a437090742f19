"""C methods of values that do not implement them themselves, by owner and name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith_dynamo.registry import register
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

#: (tracer, the value the method is bound to, arguments); for `__new__`, the real class in place of the value.
CMethod = Callable[[Tracer, Any, Args, Kwargs], Value]

C_METHODS: dict[tuple[type, str], CMethod] = {}


def c_method(name: str, *owners: type) -> Callable[[CMethod], CMethod]:
    """Register the handler of `owner.name`. Raises ValueError for one that is registered already."""
    return register(C_METHODS, *((owner, name) for owner in owners))
