"""What the C methods of `object` mean for an object value, by (owner, name): reached through `super()` or by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value

CMethod = Callable[[Tracer, Any, Args, Kwargs], Value]
OBJECT_METHODS: dict[tuple[type, str], CMethod] = {}


def c_method(owner: type, *names: str) -> Callable[[CMethod], CMethod]:
    """Register what calling `owner.name` on an object value means; `self` is the value."""

    def register(method: CMethod) -> CMethod:
        for name in names:
            OBJECT_METHODS[owner, name] = method
        return method

    return register


@c_method(object, "__setattr__")
def _setattr(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    name, value = args
    self.generic_setattr(tr, name.as_constant(), value)
    return tr.constant(None)


@c_method(object, "__getattribute__")
def _getattribute(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return self.generic_getattr(tr, args[0].as_constant())  # type: ignore[no-any-return]


@c_method(object, "__delattr__")
def _delattr(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    self.generic_delattr(tr, args[0].as_constant())
    return tr.constant(None)


@c_method(object, "__init__")
def _init(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        tr.raise_(
            TypeError,
            f"{self.python_type().__name__}.__init__() takes exactly one argument (the instance to initialize)",
        )
    return tr.constant(None)


@c_method(object, "__init_subclass__")
def _init_subclass(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return tr.constant(None)


@c_method(object, "__eq__")
def _eq(tr: Tracer, self: Any, args: Args, kwargs: Kwargs) -> Value:
    return tr.constant(True if args[0] is self else NotImplemented)
