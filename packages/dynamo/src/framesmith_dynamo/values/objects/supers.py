"""`super()` in both forms: attribute look-up that starts after a class in the MRO of the object's type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.attributes import bind_entry, bind_through_class
from framesmith_dynamo.values.objects.classes import CONSTRUCTION
from framesmith_guards.values.classes import mro

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class SuperValue(Value):
    """`super(after, instance)`. `instance` is an object, or a class when called in a classmethod or `__new__`."""

    python_types = (super,)
    exact_operators = True
    __slots__ = ("after", "instance")

    def __init__(self, after: type, instance: Value) -> None:
        super().__init__()
        self.after = after
        self.instance = instance

    def describe(self) -> str:
        return f"super({self.after.__qualname__}, {self.instance.describe()})"

    def _class(self) -> tuple[type, bool]:
        """The class whose MRO is searched, and whether the instance is that class itself."""
        cls = self.instance.python_type()
        if self.after in mro(cls):
            return cls, False
        return self.instance.as_constant(), True

    def getattr_(self, tr: Tracer, name: str) -> Value:
        cls, is_class = self._class()
        if name == "__class__":
            return tr.constant(super)
        found = type_lookup(cls, name, after=self.after)
        if found is None:
            tr.raise_(AttributeError, f"'super' object has no attribute '{name}'")
        if not is_class:
            return bind_entry(tr, found, name, self.instance)
        return bind_through_class(tr, found, name, self.instance, cls)

    def getitem(self, tr: Tracer, key: Value) -> Value:
        tr.raise_(TypeError, "'super' object is not subscriptable")

    def referents(self) -> Iterable[Value]:
        return (self.instance,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_function(super)
        codegen.load_const(self.after)
        codegen(self.instance)
        codegen.call(2)


@handles(super)
def make_super(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`super()` and `super(cls, obj)`."""
    if not args:
        args = tr.super_arguments()
    if len(args) != 2 or not args[0].is_constant():
        raise GraphBreak(CONSTRUCTION, "super() with one argument")
    return SuperValue(args[0].as_constant(), args[1])
