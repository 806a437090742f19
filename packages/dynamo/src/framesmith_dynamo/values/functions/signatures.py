"""`inspect.signature` of existing functions and methods: names and kinds come from the code, defaults have sources."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any

from framesmith_dynamo.breaks import GraphBreak
from framesmith_dynamo.values.attribute_dicts.mapping_proxy import MappingProxyValue
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles
from framesmith_dynamo.values.containers import new_dict
from framesmith_dynamo.values.errors import refuse
from framesmith_dynamo.values.functions.functions import FunctionValue, MethodValue
from framesmith_dynamo.values.functions.library_functions import INTROSPECTION

if TYPE_CHECKING:
    from framesmith_bytecode import Codegen


class SignatureValue(Value):
    """The signature of `target`. `function` is the function behind it."""

    python_types = (inspect.Signature,)
    __slots__ = ("function", "parameters", "signature", "target")

    def __init__(self, tr: Tracer, target: Value, function: FunctionValue, signature: inspect.Signature) -> None:
        super().__init__()
        self.target = target
        self.function = function
        self.signature = signature
        pairs = [(tr.constant(name), ParameterValue(self, real)) for name, real in signature.parameters.items()]
        self.parameters = MappingProxyValue(new_dict(tr, pairs, OrderedDict))

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "parameters":
            return self.parameters
        if name == "return_annotation":
            return self.annotation(tr, "return")
        if name == "empty":
            return tr.constant(inspect.Parameter.empty)
        return super().getattr_(tr, name)

    def annotation(self, tr: Tracer, name: str) -> Value:
        """The annotation of a parameter, or `empty`."""
        annotations = self.function.getattr_(tr, "__annotations__")
        return annotations.call_method(tr, "get", (tr.constant(name), tr.constant(inspect.Parameter.empty)), {})

    def default(self, tr: Tracer, name: str) -> Value:
        """The default of a parameter, or `empty`."""
        make = self.function.default_makers(tr).get(name)
        return tr.constant(inspect.Parameter.empty) if make is None else make()

    def referents(self) -> Iterable[Value]:
        return (self.target,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen.push_call(inspect.signature, (self.target,))


class ParameterValue(Value):
    """One parameter of a signature."""

    python_types = (inspect.Parameter,)
    __slots__ = ("real", "signature")

    def __init__(self, signature: SignatureValue, real: inspect.Parameter) -> None:
        super().__init__()
        self.signature = signature
        self.real = real

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if name == "default":
            return self.signature.default(tr, self.real.name)
        if name == "annotation":
            return self.signature.annotation(tr, self.real.name)
        if name in ("name", "kind"):
            return tr.constant(getattr(self.real, name))
        if isinstance(inspect.getattr_static(inspect.Parameter, name, None), inspect._ParameterKind | type):
            return tr.constant(getattr(inspect.Parameter, name))
        return super().getattr_(tr, name)

    def referents(self) -> Iterable[Value]:
        return (self.signature,)

    def reconstruct(self, codegen: Codegen) -> None:
        codegen(self.signature)
        codegen.load_attr("parameters")
        codegen.load_item(self.real.name)


@handles(inspect.signature)
def signature(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`inspect.signature(function)` of existing functions and methods."""
    if len(args) + ("obj" in kwargs) != 1:
        refuse(tr, inspect.signature, args, kwargs)
    target = args[0] if args else kwargs["obj"]
    if len(args) + len(kwargs) != 1:
        raise GraphBreak(INTROSPECTION, f"{target.describe()} with options")
    function = unwrapped(tr, target.function if isinstance(target, MethodValue) else target)
    function.guard_defaults(tr)
    function.evaluate_annotations(tr)
    real: Any = function.function
    if isinstance(target, MethodValue):
        real = MethodType(real, object())
    return SignatureValue(tr, target, function, inspect.signature(real))


def unwrapped(tr: Tracer, function: Value) -> FunctionValue:
    """Return the function at the end of a chain of `__wrapped__`, whose signature they all have."""
    if not isinstance(function, FunctionValue) or function.is_new or function.mutation is not None:
        raise GraphBreak(INTROSPECTION, function.describe())
    entries = function.function.__dict__
    if "__signature__" in entries or "__text_signature__" in entries:
        raise GraphBreak(INTROSPECTION, f"{function.describe()}, which has a signature of its own")
    if "__wrapped__" in entries:
        return unwrapped(tr, function.getattr_(tr, "__wrapped__"))
    for name in ("__signature__", "__wrapped__"):
        function.guard_absence(tr, name)
    return function
