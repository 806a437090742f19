"""Results of operators on layouts without symbols, remembered by a mode: most calls of equal layers are repeated.

Torch remembers them too, for all modes, but takes ten times as long to read a call and make its result. The key is the
operator, the layouts of tensors, plain values, and the few settings of torch that change a result. Results come from
torch, and are stored only if they can be made again exactly. Torch's library switches (`torch.backends.mkldnn.flags`
and the like) are no part of the key: they affect kernels, not layouts. Off where torch's own cache is
(`cache_enabled`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from framesmith_aten.nested import tensors_in
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode, OpOverload, unstable
from framesmith_guards.values.tensors import dispatch_keys

#: Types whose equal values give equal results. (NaN equals no float.)
PLAIN: Final = frozenset(
    (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)
#: Tags of operators whose results are data, or whose fakes hold more than a layout.
_DATA: Final = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view)
#: The answers of `memory_of` for results with memory of their own, and for unknown memory.
OWN, UNKNOWN_MEMORY = -1, -2
#: Whether torch has the functions to read a call and make its result again.
_CAN_COMPUTE: Final = unstable.has("DisableTorchDispatch") and unstable.has("get_default_device")
#: Stored for a call whose result cannot be made again.
_NOTHING: Final = ()


@cache
def memory_of(op: Any) -> int:
    """Return the position of the argument in whose memory the operator's results lie; or OWN, or UNKNOWN_MEMORY."""
    if not isinstance(op, OpOverload) or op.namespace not in ("aten", "prims"):
        return UNKNOWN_MEMORY
    schema = op._schema
    if schema.is_mutable or any(tag in op.tags for tag in _DATA):
        return UNKNOWN_MEMORY
    if all(result.alias_info is None for result in schema.returns):
        return OWN
    shared = [at for at, argument in enumerate(schema.arguments) if argument.alias_info is not None]
    return shared[0] if len(shared) == 1 else UNKNOWN_MEMORY


@dataclass(frozen=True, slots=True)
class _Made:
    """A recipe of a tensor: in memory of its own, or as a view."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def again(self, mode: FakeTensorMode, base: torch.Tensor | None) -> FakeTensor:
        with unstable.DisableTorchDispatch():
            if base is None:
                meta = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            else:
                meta = torch.empty(0, dtype=self.dtype, device="meta")
                meta.set_(base.untyped_storage(), self.offset, self.shape, self.stride)
            return FakeTensor(mode, meta, self.device)


class StaticResults:
    """The results of one mode's operators."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Sequence[_Made | None] | _Made] = {}

    def of(
        self, mode: FakeTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]
    ) -> Any:
        """Return the fake result of a call: made again, or that of `run`."""
        at = memory_of(op) if _CAN_COMPUTE else UNKNOWN_MEMORY
        if at == UNKNOWN_MEMORY or mode.in_kernel_invocation or not mode.cache_enabled or mode.propagate_real_tensors:
            return run()
        key = _key(mode, op, args, kwargs)
        base = args[at] if key is not None and at < len(args) and at != OWN else None
        if key is None or (at != OWN and type(base) is not FakeTensor):
            return run()
        known = self._known.get(key)
        if known is None:
            result = run()
            self._known[key] = _made(mode, result, base, (*args, *kwargs.values()))
            return result
        if type(known) is _Made:
            return known.again(mode, base)
        if known is _NOTHING:
            return run()
        again = [None if one is None else one.again(mode, base) for one in known]  # type: ignore[union-attr]
        return again if isinstance(known, list) else tuple(again)


def _key(mode: FakeTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[object, ...] | None:
    """Return the key of a call, or None if its result depends on more."""
    if torch.is_inference_mode_enabled():
        return None
    found: list[object] = [op, torch.get_default_dtype(), unstable.get_default_device()]
    if not all(_add(found, mode, value) for value in args):
        return None
    for name, value in kwargs.items():
        found.append(name)
        if not _add(found, mode, value):
            return None
    return tuple(found)


def _add(found: list[object], mode: FakeTensorMode, value: Any) -> bool:
    """Append an argument's part of the key; whether it has one."""
    kind = type(value)
    if kind is FakeTensor:
        if value.fake_mode is not mode or not _is_known(value):
            return False
        found += (dispatch_keys(value), value.dtype, value.fake_device, value.requires_grad)
        found += (tuple(value.shape), value.stride(), value.storage_offset(), value.untyped_storage().nbytes())
        return True
    if kind in PLAIN:
        found += (kind, value)
        is_current_device = kind is torch.device and value.index is None and value.type not in ("cpu", "meta")
        return bool(value == value) and not is_current_device
    if kind is list or kind is tuple:
        found += (kind, len(value))
        return all(_add(found, mode, one) for one in value)
    return False


def _made(
    mode: FakeTensorMode, result: Any, base: FakeTensor | None, given: tuple[Any, ...]
) -> Sequence[_Made | None] | _Made:
    """Return how to make the result again, if that gives an equal one."""
    several = type(result) in (list, tuple)
    parts = list(result) if several else [result]
    taken = {one.untyped_storage()._cdata for one in tensors_in(given)}
    made: list[_Made | None] = []
    for part in parts:
        if part is None and several:
            made.append(None)
            continue
        if type(part) is not FakeTensor or not _is_known(part):
            return _NOTHING
        storage = part.untyped_storage()._cdata
        if storage in taken if base is None else storage != base.untyped_storage()._cdata:
            return _NOTHING
        taken.add(storage)
        offset = int(part.storage_offset())
        one = _Made(tuple(part.shape), part.stride(), offset, part.dtype, part.fake_device)
        if (base is None and offset != 0) or not _is_same(part, one.again(mode, base)):
            return _NOTHING
        made.append(one)
    if not several:
        (only,) = made
        return _NOTHING if only is None else only
    return (made if isinstance(result, list) else tuple(made)) if made else _NOTHING


def _is_known(tensor: FakeTensor) -> bool:
    """Whether layout, without symbols, and dispatch keys describe the tensor fully."""
    if tensor.layout is not torch.strided or tensor.constant is not None or tensor._has_symbolic_sizes_strides:
        return False
    # A part of constant sizes may have a symbolic offset, and its storage a symbolic size.
    return type(tensor.storage_offset()) is int and type(tensor.untyped_storage().nbytes()) is int


def _is_same(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether two results of equal sizes, strides and dtypes are otherwise equal, except in memory."""
    if (a.requires_grad, a._base is None, a.fake_device) != (b.requires_grad, b._base is None, b.fake_device):
        return False
    return dispatch_keys(a) == dispatch_keys(b) and a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
