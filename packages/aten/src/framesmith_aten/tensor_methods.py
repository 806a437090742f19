"""Methods of tensors that do more than their operators: on a fake, the call gives the value without the effect.

Grouped by subject. A function of `torch` means the method of its name. Methods that need data are absent where an
operator under them reports it on fakes (`item`, `nonzero`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from framesmith_aten.operators import IDENTITY_VIEWS, op_name
from framesmith_guards.torch_adapter import OpOverload, OpOverloadPacket


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Change autograd's state of the tensor object; views for autograd only, in place, do nothing else.
AUTOGRAD_STATE: Final = _names("register_hook register_post_accumulate_grad_hook retain_grad requires_grad_") | {
    f"{op_name(op)}_" for op in IDENTITY_VIEWS
}
#: Run the autograd engine, which writes to tensors that are not arguments.
ENGINE: Final = _names("backward")
#: Handle the storage, or the type of tensor.
STORAGE: Final = _names(
    """data_ptr storage untyped_storage _typed_storage set_ resize_ resize_as_ share_memory_ pin_memory is_shared
    is_pinned as_subclass _make_subclass _make_wrapper_subclass to_sparse coalesce is_coalesced module_load
    record_stream"""
)
#: Hand data to Python by other ways than an operator's.
DATA: Final = _names(
    """numpy __array__ __int__ __float__ __index__ __complex__ __str__ __repr__ __format__ __dlpack__ __dlpack_device__
    is_set_to __reduce_ex__ __deepcopy__"""
)
#: Call a Python function per element.
CALLBACK: Final = _names("apply_ map_ map2_")


def method_of(target: Any) -> str | None:
    """Return the tensor method that a call of `target` (a name, or a function of torch) means; None for an operator."""
    if isinstance(target, (str, OpOverload, OpOverloadPacket)):
        return target if isinstance(target, str) else None
    module = getattr(target, "__module__", None) or "torch"  # C functions and methods have none
    return op_name(target) if module.partition(".")[0] == "torch" else None


def concerns_pinning(target: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call allocates pinned memory, or asks for it: fakes have none."""
    return kwargs.get("pin_memory") is True or (not isinstance(target, str) and op_name(target) == "is_pinned")
