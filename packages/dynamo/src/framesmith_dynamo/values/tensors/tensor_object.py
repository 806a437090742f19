"""A tensor as a Python object: its class, its attributes, and those that a program sets or deletes.

Metadata folds to constants (the tensor's guards cover it); attributes set by the program, and `.grad`, are in the
journal.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.attribute_dicts.owners import note_instance_dict
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.bound_method import BuiltinMethodValue
from framesmith_dynamo.values.lookup.static import type_lookup
from framesmith_dynamo.values.objects.attributes import bind_entry
from framesmith_dynamo.values.tensors.tensor_tables import (
    ASKED_IN_BODY,
    AUTOGRAD_STATE,
    BREAKING_ATTRIBUTES,
    FOLDED_ATTRIBUTES,
    GRAPH_ATTRIBUTES,
    HISTORY,
    LAYOUT_METHODS,
)
from framesmith_guards import AttrSource
from framesmith_guards.values.classes import class_dict, mro
from framesmith_sideeffects import DELETED, has_own_attribute, load_source

if TYPE_CHECKING:
    from torch import fx

    from framesmith_bytecode import Codegen
    from framesmith_dynamo.graph.builder import TensorRef
    from framesmith_guards import Source

TENSOR_ATTRIBUTE = register_break(
    "tensor-attribute",
    what="an attribute of a tensor cannot be followed",
    why="it is neither metadata, nor a tensor operation, nor the program's own, or it hides a method of torch.Tensor",
    hint="name attributes that you set on tensors differently from those of torch.Tensor",
)


#: Attributes of tensors that a subclass of Parameter may define: no operation reads them.
_ASIDE = frozenset({
    "__annotations__", "__deepcopy__", "__dict__", "__doc__", "__firstlineno__", "__init__", "__module__", "__new__",
    "__reduce_ex__", "__repr__", "__static_attributes__", "__weakref__",
})  # fmt: skip


@functools.cache
def is_plain_parameter_class(cls: type) -> bool:
    """Whether a class extends Parameter without changing operations: it only adds attributes and methods."""
    if not issubclass(cls, torch.nn.Parameter):
        return False
    if cls.__torch_function__ is not torch.nn.Parameter.__torch_function__:
        return False
    if cls.__torch_dispatch__ is not torch.nn.Parameter.__torch_dispatch__:
        return False
    added = {name for base in mro(cls) if base not in mro(torch.nn.Parameter) for name in class_dict(base)} - _ASIDE
    return not any((name.startswith("__") and name.endswith("__")) or hasattr(torch.Tensor, name) for name in added)


class TensorObject(Value):
    """A tensor in the trace: `ref` pairs its fake with the graph node that computes it.

    An input whose `.data` the trace has set has another `ref` from then on; `own_ref` is that of the input.
    """

    __slots__ = ("cls", "own_ref", "ref")

    def __init__(self, ref: TensorRef, *, cls: type = torch.Tensor, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.ref = self.own_ref = ref
        self.cls = cls

    @property
    def fake(self) -> torch.Tensor:
        """The fake tensor: dtype, device, sizes, strides."""
        return self.ref.fake

    @property
    def real(self) -> torch.Tensor | None:
        """The tensor of the call that this is, for an input."""
        return self.own_ref.real

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        where = f" from {self.source.name}" if self.source is not None else ""
        return f"a {self.cls.__name__} {str(self.fake.dtype).removeprefix('torch.')}{list(self.fake.shape)}{where}"

    def as_proxy(self) -> fx.Node:
        return self.ref.node

    def reconstruct(self, codegen: Codegen) -> None:
        if self.source is not None:
            load_source(codegen, self.source)
        else:
            codegen.load_output(self.ref)

    # Reading

    def getattr_(self, tr: Tracer, name: str) -> Value:
        if tr.facts.body.level:
            self.check_asked(tr, name)
        if tr.facts.body.reentrant and name in HISTORY and self.source is None and self.fake.requires_grad:
            raise GraphBreak(AUTOGRAD_STATE, f"{name!r} of {self.describe()} in a reentrant checkpoint")
        folded = FOLDED_ATTRIBUTES.get(name)
        if folded is not None and not (name == "is_leaf" and self.source is not None and self.fake.requires_grad):
            return tr.constant(folded(self.fake))
        if name == "data" and self.fake.is_inference() and not torch.is_inference_mode_enabled():
            # Unlike a detached one, it may be changed.
            raise GraphBreak(AUTOGRAD_STATE, f"attribute {name!r} of an inference tensor outside of inference mode")
        if name in GRAPH_ATTRIBUTES:
            return tr.call_torch(getattr, (self, tr.constant(name)), {})
        if name == "__class__":
            return tr.constant(self.cls)
        if name == "grad_fn" and (not self.fake.requires_grad or id(self) in tr.facts.hook_nodes):
            return tr.facts.hook_nodes.get(id(self)) or tr.constant(None)
        if name == "grad":
            return self._read_grad(tr)
        kind = BREAKING_ATTRIBUTES.get(name)
        if kind is not None or name in ("grad_fn", "is_leaf"):
            raise GraphBreak(kind or AUTOGRAD_STATE, f"attribute {name!r} of {self.describe()}")
        if callable(getattr(torch.Tensor, name, None)):
            return BuiltinMethodValue(self, name)
        if hasattr(torch.Tensor, name):
            raise GraphBreak(TENSOR_ATTRIBUTE, f"{name!r} of {self.describe()}")
        found = type_lookup(self.cls, name)
        if found is not None:
            return bind_entry(tr, found, name, self)
        return self._own_attribute(tr, name) or self._no_attribute(tr, name)

    def check_asked(self, tr: Tracer, name: str) -> None:
        """Break where the tensor, in the body of a transform, would give another answer than its fake.

        A batched tensor has no gradients of its own; its strides are those of a whole batch. Tensors of a
        differentiated function have histories.
        """
        history = self.fake.requires_grad or tr.facts.body.differentiated
        if self.source is None and (name in LAYOUT_METHODS or (name in HISTORY and history)):
            raise GraphBreak(ASKED_IN_BODY, f"{name!r} of {self.describe()}")

    def _read_grad(self, tr: Tracer) -> Value:
        if (pending := tr.journal.stored_attr(self, "grad")) is not None:
            return pending
        if self._is_input_leaf():
            assert self.source is not None
            assert self.real is not None
            return tr.wrap(self.real.grad, AttrSource(self.source, "grad"))
        if self._is_made_leaf() or id(self) in tr.facts.retains_grad:
            return tr.constant(None)
        raise GraphBreak(AUTOGRAD_STATE, f"attribute 'grad' of {self.describe()}")

    def _is_input_leaf(self) -> bool:
        """Whether the tensor is an input and a leaf: its `.grad` does not change during the trace."""
        return self.source is not None and self.real is not None and self.real.is_leaf

    def _is_made_leaf(self) -> bool:
        """Whether the trace made the tensor, without autograd history."""
        return self.source is None and self.fake.is_leaf

    def _own_attribute(self, tr: Tracer, name: str) -> Value | None:
        """Return an attribute that a program has set, pending stores included, or None; absence is guarded."""
        pending = tr.journal.load_attr(self, name)
        if pending is not None:
            return None if pending is DELETED else pending
        entries = self.entries()
        if entries is None:
            return None
        assert self.source is not None
        note_instance_dict(tr, self)
        if name in entries:
            return tr.wrap(entries[name], AttrSource(self.source, name))
        tr.guard(self.source, "NO_HASATTR", name)
        return None

    def entries(self) -> dict[str, Any] | None:
        """The dictionary of attributes that programs have set on the tensor; None for one made in the trace."""
        return None if self.real is None or self.source is None else self.real.__dict__

    def _no_attribute(self, tr: Tracer, name: str) -> NoReturn:
        tr.raise_(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    # Writing

    def setattr_(self, tr: Tracer, name: str, value: Value) -> None:
        if tr.facts.body.level:
            self.check_asked(tr, name)
        if name == "grad":
            self._set_grad(tr, value)
        elif name == "requires_grad" and value.python_type() is bool and value.can_be_constant():
            self.call_method(tr, "requires_grad_", (value,), {})
        elif hasattr(self.cls, name):
            kind = AUTOGRAD_STATE if name in ("requires_grad", "data") else TENSOR_ATTRIBUTE
            raise GraphBreak(kind, f"setting {name!r} of {self.describe()}")
        else:
            note_instance_dict(tr, self)
            self.track(tr)
            tr.journal.store_attr(self, name, value)

    def delattr_(self, tr: Tracer, name: str) -> None:
        if name == "grad":
            self._set_grad(tr, tr.constant(None))
            return
        if hasattr(self.cls, name):
            raise GraphBreak(TENSOR_ATTRIBUTE, f"deleting {name!r} of {self.describe()}")
        if self._own_attribute(tr, name) is None:
            self._no_attribute(tr, name)
        self.track(tr)
        if self.source is not None and tr.journal.load_attr(self, name) is not None:
            present = has_own_attribute(self.real, name)
            tr.guard(self.source, "HASATTR" if present else "NO_HASATTR", name)
        tr.journal.delete_attr(self, name)

    def is_same_flag(self, value: Value) -> bool:
        """Whether setting `requires_grad` to this value leaves it unchanged."""
        return value.can_be_constant() and value.as_constant() is self.fake.requires_grad

    def _set_grad(self, tr: Tracer, value: Value) -> None:
        if not (self._is_input_leaf() or self._is_made_leaf()) or not self._takes_as_grad(value):
            raise GraphBreak(AUTOGRAD_STATE, f"setting 'grad' of {self.describe()}")
        self.track(tr)
        tr.journal.store_attr(self, "grad", value)

    def retain(self, tr: Tracer, gradient: Value) -> None:
        """Store what `retain_grad` keeps of a pass in the trace."""
        self.track(tr)
        tr.journal.store_attr(self, "grad", gradient)

    def _takes_as_grad(self, value: Value) -> bool:
        """Whether torch accepts a gradient for this tensor."""
        if value.is_none():
            return True
        if not isinstance(value, TensorObject) or value is self:
            return False
        own, grad, real = self.fake, value.fake, self.real
        if own.layout is not torch.strided or grad.layout is not torch.strided:
            return False
        wanted = own.dtype if real is None else getattr(real, "grad_dtype", own.dtype)
        return (own.shape, wanted, own.device) == (grad.shape, grad.dtype, grad.device)

    def track(self, tr: Tracer) -> None:
        """Track the tensor in the journal."""
        if self.mutation is not None:
            return
        if self.source is not None:
            tr.journal.track_existing(self, self.real)
        else:
            tr.journal.track_new(self, self.cls)
