"""Results of operators on symbolic sizes, remembered: most calls of equal layers are repeated.

Torch's own cache makes the symbols of each result afresh, with all that follows. Here the key is the symbols
themselves; repeating a call relies on nothing new. So an unbacked size (the rows of `x[:n]`) is forgotten once it is
assumed to equal another: runtime checks of one result do not cover the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from framesmith_aten.fakes.light_fakes import in_memory_of
from framesmith_aten.fakes.rules.static_results import OWN, PLAIN, UNKNOWN_MEMORY, memory_of
from framesmith_guards.symbolic_guards import notes_of
from framesmith_guards.torch_adapter import FakeTensor, FakeTensorMode, OpOverload, no_dispatch, unstable

_SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _NotRemembered(Exception):
    """Layouts alone do not determine the call's result."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A recipe of a tensor: in memory of its own, or as a view."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device

    @property
    def stands(self) -> bool:
        """Whether the unbacked numbers are still independent symbols."""
        numbers = [one for one in (*self.shape, *self.stride, self.offset) if isinstance(one, torch.SymInt)]
        return not any(
            one.node.expr != one.node._expr and unstable.free_unbacked_symbols(one.node._expr) for one in numbers
        )

    def again(self, mode: FakeTensorMode, base: torch.Tensor | None) -> FakeTensor:
        if base is not None:
            return in_memory_of(mode, base, self.shape, self.stride, self.offset, self.dtype)
        env: Any = mode.shape_env
        with no_dispatch(), env.suppress_guards():
            meta = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            return FakeTensor(mode, meta, self.device)


def dispatched(
    mode: FakeTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]
) -> Any:
    """Return the fake result of a call: made again, or that of `run`."""
    env: Any = mode.shape_env
    notes = notes_of(env)
    if notes is None:
        return run()
    results = notes.call_results
    try:
        base = _viewed(op, args)
        key = _key(op, args, kwargs, base)
    except _NotRemembered:
        return run()
    known = results.get(key)
    if known is None or not all(one.stands for one in _all_made(known)):
        fresh = len(env.pending_fresh_unbacked_symbols)
        result = run()
        unbacked = base is None and len(env.pending_fresh_unbacked_symbols) > fresh
        made = None if unbacked else _made(result, base)
        results[key] = False if made is None else made
        return result
    if known is False:
        return run()
    if isinstance(known, _Made):
        return known.again(mode, base)
    again = [one.again(mode, base) for one in known]
    return again if isinstance(known, list) else tuple(again)


def _all_made(known: Any) -> Sequence[_Made]:
    if known is False:
        return ()
    return (known,) if isinstance(known, _Made) else known


def _viewed(op: Any, args: Sequence[Any]) -> torch.Tensor | None:
    at = memory_of(op)
    if at == OWN:
        return None
    if at == UNKNOWN_MEMORY or at >= len(args) or not isinstance(args[at], torch.Tensor):
        raise _NotRemembered
    tensor: torch.Tensor = args[at]
    return tensor


def _key(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], base: torch.Tensor | None) -> Any:
    found: list[Any] = [op, torch.is_inference_mode_enabled()]
    if base is not None:
        _add(found, base.storage_offset())
    _add(found, args)
    for name, value in kwargs.items():
        found.append(name)
        _add(found, value)
    return tuple(found)


def _add(found: list[Any], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        _add_tensor(found, value)
    elif isinstance(value, _SYMBOLIC):
        found += (type(value), value.node.expr)
    elif isinstance(value, (list, tuple)):
        found.append(len(value))
        for item in value:
            _add(found, item)
    elif type(value) in PLAIN:
        found += (type(value), repr(value) if type(value) is float else value)
    else:
        raise _NotRemembered


def _add_tensor(found: list[Any], tensor: torch.Tensor) -> None:
    plain = type(tensor) is FakeTensor and tensor.layout is torch.strided and tensor.constant is None
    if not plain or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        raise _NotRemembered
    found += (tensor.dtype, tensor.device, tensor.is_inference(), tensor.dim(), tensor._is_zerotensor())
    for number in (*tensor.shape, *tensor.stride()):
        found.append(number.node.expr if isinstance(number, torch.SymInt) else number)


def _made(result: Any, base: torch.Tensor | None) -> Any:
    if isinstance(result, (tuple, list)):
        parts = [_made(part, base) for part in result]
        made = parts if isinstance(result, list) else tuple(parts)
        return made if all(isinstance(part, _Made) for part in parts) else None
    if type(result) is not FakeTensor or result.layout is not torch.strided or result.constant is not None:
        return None
    if result is base or result.is_inference() != torch.is_inference_mode_enabled():
        return None
    if result.is_conj() or result.is_neg() or result._is_zerotensor() or result._base is not None:
        return None
    offset = result.storage_offset()
    if base is None:
        if isinstance(offset, torch.SymInt) or offset != 0:
            return None
    elif result.untyped_storage()._cdata != base.untyped_storage()._cdata:
        return None
    return _Made(tuple(result.shape), tuple(result.stride()), offset, result.dtype, result.device)
