"""Triton's interpreter, computing as devices do: functions that generated kernels call, by NumPy and torch.

Where the interpreter itself computes otherwise it is mended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton import knobs
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def functions() -> dict[str, Callable[..., Any]]:
    """Replacements of the functions of the same names that devices call."""
    found = {name: _by_numpy(function) for name, function in _NUMPY.items()}
    found |= {f"scan_{name}": _by_accumulating(function) for name, function in _SCANS.items()}
    return found | {
        "integer": _scalar(tl.int64),
        "count": _scalar(tl.int32),
        "double": _scalar(tl.float64),
        "since": lambda number, first: number - first,
    }


def _by_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on the interpreter's tensors, which hold NumPy arrays; computed in double precision."""

    def apply(*args: Any) -> Any:
        data = np.broadcast_arrays(*(a.handle.data for a in args))
        largest = sorted(args, key=lambda a: a.handle.data.size)[-1]
        with np.errstate(all="ignore"):
            value = function(*(d.astype(np.float64) for d in data)).astype(data[0].dtype)
        return tl.tensor(TensorHandle(value, largest.dtype.scalar), largest.type)

    return apply


def _scalar(dtype: Any) -> Callable[[Any], Any]:
    """A kernel's parameter as a tensor of no dimensions; the interpreter holds integers in 32 bits where they fit."""
    kinds = {tl.int32: np.int32, tl.int64: np.int64, tl.float64: np.float64}

    def apply(x: Any) -> Any:
        data = x.handle.data.reshape(()) if isinstance(x, tl.tensor) else np.array(x)
        return tl.tensor(TensorHandle(data.astype(kinds[dtype]), dtype), dtype)

    return apply


def mend() -> None:
    """Have the interpreter compute and check as devices do, and take less time for it: by `_MENDED`."""
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, debug=True, sanitize_overflow=False)
    knobs.compilation.front_end_debugging = True  # else errors are put in one of the interpreter's own
    for owner, name, function in _MENDED:
        setattr(owner, name, _with_original(function, getattr(owner, name)))


def _with_original(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(original, *args)


#: Attributes of the interpreter, and their replacements, which take the original first.
_MENDED: list[tuple[Any, str, Callable[..., Any]]] = []


def _mends(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        _MENDED.append((owner, name, function))
        return function

    return note


@_mends(InterpreterBuilder, "create_assert")
def _check_and_raise(original: Any, self: Any, condition: Any, message: str) -> None:
    """Raise the error of eager mode for indices out of range, with the check's words. The interpreter leaves it out."""
    if not condition.data.all():
        raise IndexError(message)


@_mends(interpreter, "_patch_lang_tensor")
def _count_to_computed_ends(original: Any, tensor: Any, scope: Any) -> None:
    """Let loops end at what is computed of sizes: to the interpreter that is an array of one element."""
    original(tensor, scope)
    tensor.__index__ = lambda self: int(self.handle.data.reshape(()))


@_mends(InterpreterBuilder, "create_splat")
def _keep_truth_when_spread(original: Any, self: Any, kind: Any, value: Any) -> Any:
    """Broadcast a truth value as one: to the interpreter a comparison is of the type of its operands."""
    return TensorHandle(np.full(kind.shape, value.data.reshape(-1)[0], value.data.dtype), value.dtype.scalar)


@_mends(InterpreterBuilder, "get_all_ones_value")
def _invert_bytes(original: Any, self: Any, kind: Any) -> Any:
    """Know all ones of bytes, among which NumPy has no -1."""
    return original(self, kind) if kind.scalar != tl.uint8 else TensorHandle(np.full(1, 255, np.uint8), tl.uint8)


@_mends(InterpreterBuilder, "create_dot")
def _multiply_bfloat16(original: Any, self: Any, a: Any, b: Any, *rest: Any) -> Any:
    """Multiply matrices of bfloat16, which the interpreter holds as integers of 16 bits."""

    def widened(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    return original(self, widened(a), widened(b), *rest)


@_mends(interpreter, "_convert_float")
def _round_to_bfloat16(original: Any, numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Round to the nearest bfloat16, as devices do: the interpreter cuts off what does not fit."""
    if target == tl.bfloat16 and source == tl.float32:
        bits = np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64)
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return np.where(is_nan, (bits >> 16) | 0x40, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if target == tl.float32 and source == tl.bfloat16:
        return np.ascontiguousarray(numbers).view(np.uint16).astype(np.uint32) << 16
    return original(numbers, source, target, rounding)


@_mends(interpreter.ReduceOps, "generic_reduce")
def _reduce_whole_blocks(original: Any, self: Any, inputs: Sequence[Any]) -> list[Any]:
    """Combine neighbours, all pairs of a block by one call, and so on with what comes of them.

    The interpreter goes through elements one by one, with a call in Python for each.
    """

    def combine(first: list[Any], second: list[Any]) -> list[Any]:
        tensors = [
            self.to_tensor(block, given.dtype)
            for side in (first, second)
            for block, given in zip(side, inputs, strict=True)
        ]
        found = self.combine_fn.fn(*tensors)
        found = found if isinstance(found, tuple) else (found,)
        return [one.handle.data.astype(like.dtype) for one, like in zip(found, first, strict=True)]

    blocks = [given.handle.data for given in inputs]
    dimensions, axis = blocks[0].ndim, self.axis
    if axis is None:
        blocks, axis = [block.reshape(-1) for block in blocks], 0
    blocks = [np.moveaxis(block, axis, 0) for block in blocks]
    while len(blocks[0]) > 1:
        even = len(blocks[0]) & ~1
        pairs = combine([block[0:even:2] for block in blocks], [block[1:even:2] for block in blocks])
        blocks = [np.concatenate([pair, block[even:]]) for pair, block in zip(pairs, blocks, strict=True)]
    results = [block[0] for block in blocks]
    if self.keep_dims:
        kept = (1,) * dimensions
        results = [one.reshape(kept) if self.axis is None else np.expand_dims(one, axis) for one in results]
    return [self.to_tensor(one, given.dtype) for one, given in zip(results, inputs, strict=True)]


@_mends(interpreter, "_patch_lang")
def _prepare_once(original: Any, function: Any) -> Any:
    """Replace the language's functions for a kernel, and not again for each function it calls."""
    languages = [one for one in function.__globals__.values() if one is tl or one is tl.core]
    if languages and not any(tl.core.is_builtin(one.load) for one in languages):
        return interpreter._LangPatchScope()
    return original(function)


def _by_accumulating(function: np.ufunc) -> Callable[..., Any]:
    """A scan on the interpreter's tensors; its own takes a while for each element."""

    def apply(x: Any, axis: int, reverse: bool) -> Any:
        data = np.flip(x.handle.data, axis) if reverse else x.handle.data
        with np.errstate(all="ignore"):
            found = function.accumulate(data, axis=axis, dtype=data.dtype)
        return tl.tensor(TensorHandle(np.flip(found, axis).copy() if reverse else found, x.dtype.scalar), x.type)

    return apply


def _torchs(name: str) -> Callable[[Any], Any]:
    """A function that NumPy does not have."""
    return lambda x: getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()


_NUMPY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": _torchs("erf"), "erfc": _torchs("erfc"), "hypot": np.hypot,
    "erfinv": _torchs("erfinv"), "lgamma": _torchs("gammaln"), "i0": _torchs("i0"), "i1": _torchs("i1"),
    "pow": np.power, "fmod": np.fmod,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "copysign": np.copysign,
}  # fmt: skip


_SCANS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp,
}  # fmt: skip
