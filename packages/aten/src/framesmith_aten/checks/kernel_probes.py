"""Probes of an operator's real kernel: whether it accepts such operands, and the strides of its result.

Fake tensors accept dtypes that a kernel refuses (a softmax of integers), numbers that a dtype cannot hold, and writes
to memory that is also read. A probe runs the operator on real tensors of the same dtypes, devices and numbers: with few
elements, or, where memory is shared or few elements do not suffice, with the layouts given. Each kind of call is probed
once per process.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from framesmith_aten.checks.ignored_warnings import quietly
from framesmith_aten.checks.plain_tensors import why_not_plain
from framesmith_aten.failures import may_fail, why_may_fail
from framesmith_aten.layouts import (
    dims_by_stride,
    is_contiguous,
    is_interleaved,
    memory_order,
    overlaps_itself,
    storage_id,
)
from framesmith_aten.nested import tensors_in
from framesmith_aten.operators import (
    acts_on_no_operands,
    arguments,
    is_composite,
    is_custom,
    is_pointwise,
    is_random,
    is_view,
    is_view_by_strides,
    op_name,
    reads_workspace,
    written,
)
from framesmith_aten.symbolic import (
    UNBACKED_HINT,
    all_equal,
    equal,
    has_symbols,
    hint_assuming,
    hint_or_guess,
    is_symbolic,
    is_unbacked,
)
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import OpOverload, no_dispatch

#: Elements up to which real tensors are made as large as the fakes.
LARGEST: Final = 1 << 16
#: The same where only a layout is asked for.
SMALL: Final = 1 << 12
#: Operators whose results have, for many pixels, other strides than fakes of some release: probed on few pixels.
CROPPED: Final = frozenset((
    "channel_shuffle", "native_group_norm", "reflection_pad2d", "reflection_pad3d", "replication_pad2d",
    "replication_pad3d",
))  # fmt: skip
#: Unbacked sizes in a probe; the second where, with the first, a result's size came to be 1 or 0.
UNBACKED_SIZES: Final = (UNBACKED_HINT, 8)
#: Verdicts remembered, about 2 KiB each; a large model needs a few hundred.
MOST: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a probe: `refusal` is the kernel's error, None if it accepted the call or was not probed.

    `certain`: the kernel is known to accept the call. `gives`: the kind of a result that no graph holds, if there is
    one; fakes of quantized tensors do not show it.
    """

    refusal: str | None = None
    certain: bool = True
    gives: str | None = None


ACCEPTED: Final = Verdict()
UNKNOWN: Final = Verdict(certain=False)

#: The strides of a dense result, by its sizes and the call's operands.
Strides = Callable[[Sequence[Any], Sequence[torch.Tensor]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """A function for the strides of a dense result, valid where dimensions `ones` have size 1, as in the probe."""

    strides: Strides
    ones: tuple[int, ...]

    def applies_to(self, size: Sequence[Any]) -> bool:
        """Whether the layout is valid for a result of these sizes."""
        return all(equal(size[dim], 1) for dim in self.ones)


#: By operator and kind of arguments, and by layouts where few elements did not suffice.
_verdicts: dict[Any, Verdict] = {}
_results: dict[Any, tuple[Layout | None, ...]] = {}


def verdict(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """Return the kernel's verdict on operands like these fakes, whatever their data.

    Operators are not probed that may refuse some data, read data, or are not torch's own. Probes are per kind of
    arguments, and per call where memory is both written and read. Operators with size arguments are probed on tensors
    of the given sizes: some read and write by them without a check.
    """
    if is_custom(op) or is_composite(op) or op.namespace != "aten" or reads_workspace(op) or acts_on_no_operands(op):
        return UNKNOWN
    changed = written(op, args, kwargs)
    if is_view(op) and not changed:
        return _shown(op, args, kwargs)
    tensors = list(tensors_in((*args, *kwargs.values())))
    if (
        not all(_is_plain(tensor) for tensor in tensors)
        or may_fail(op, args, kwargs)
        or _moves_others(op, args, kwargs)
        or may_end_all(op, tensors)
    ):
        return UNKNOWN
    if _share(changed, tensors):
        return _probed_laid_out(op, args, kwargs, tensors)
    kind = (op, torch.are_deterministic_algorithms_enabled(), _kind(args), _kind(kwargs))
    if any("size" in argument.name for argument in op._schema.arguments):
        return _known((kind, _layouts(tensors)), lambda: _probed_laid_out(op, args, kwargs, tensors))
    small = _known(kind, lambda: _probed_small(op, args, kwargs, tensors))
    if small.refusal is None:
        return small
    return _known((kind, _layouts(tensors)), lambda: _probed_laid_out(op, args, kwargs, tensors))


def _shown(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """Return a view's verdict, on a meta tensor: fakes accept some views that the operators refuse.

    Those are views along a missing dimension, in sizes without strides, and beyond the end of memory.
    """
    values = arguments(op, args, kwargs)
    if is_view_by_strides(op):  # running it would enlarge the fake's memory
        beyond = why_may_fail(op, args, kwargs)
        return ACCEPTED if beyond is None else Verdict(f"RuntimeError: {beyond}", certain=False)
    tensor = next(tensors_in(list(values.values())))
    known = values.get("dim")
    if -tensor.dim() <= known < tensor.dim() if isinstance(known, int) else is_contiguous(tensor):
        return ACCEPTED
    return _answer(op, _mapped(args, _without_memory), _mapped(kwargs, _without_memory))


def _layouts(tensors: Sequence[torch.Tensor], unbacked: int = UNBACKED_SIZES[0]) -> tuple[Any, ...]:
    return tuple(_laid_out(tensor, unbacked)[1:] for tensor in tensors)


def _elements(tensors: Sequence[torch.Tensor], unbacked: int = UNBACKED_SIZES[0]) -> int:
    return sum(hint_assuming(tensor.numel(), unbacked) for tensor in tensors)


def as_laid_out(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
    """Return the fake result of a call with the strides of the real kernel's.

    Meta kernels give results of non-contiguous operands other strides, and along dimensions of size 1 those of all
    operands. Probed are pointwise operators, with two elements along each dimension; those of CROPPED, with few pixels;
    small calls of others, and calls with dimensions of size 1.
    """
    made = list(tensors_in(out))
    tensors = list(tensors_in((*args, *kwargs.values())))
    # Results of contiguous operands change order, too. Fakes of torch 2.11 do not.
    is_fourier_transform = op_name(op).startswith("_fft_")
    if not made or (not is_fourier_transform and all(map(_has_no_choice, filter(_is_plain, tensors)))):
        return out
    if (
        is_custom(op)
        or reads_workspace(op)
        or is_view(op)
        or op.namespace != "aten"
        or any(one is two for one in made for two in tensors)
    ):
        return out
    if not all(map(_is_plain, (*tensors, *made))) or _is_large(op, args, kwargs, tensors):
        return out
    if _moves_others(op, args, kwargs) or may_end_all(op, tensors):
        return out
    layouts: tuple[Layout | None, ...] = ()
    for unbacked in UNBACKED_SIZES if any(map(_has_unbacked, tensors)) else UNBACKED_SIZES[:1]:
        layouts = _layouts_found(op, args, kwargs, tensors, len(made), unbacked)
        if all(one is None or one.applies_to(result.shape) for one, result in zip(layouts, made, strict=True)):
            break
    return _relaid(out, iter(layouts), tensors)


def _padding(args: Sequence[Any]) -> int:
    """Return the largest number in the lists among the arguments; a padding has to be less than the padded size."""
    numbers = [hint_or_guess(size) for value in args if isinstance(value, (list, tuple)) for size in value]
    return max((abs(size) for size in numbers if type(size) is int), default=0)


def _cropped(padding: int, unbacked: int, tensor: torch.Tensor) -> torch.Tensor:
    """Return a batch of at most two with few pixels, in the order of the fake's strides; other tensors in full."""
    _, size, strides = _laid_out(tensor, unbacked)
    if len(size) >= 4:
        most = max(padding + 1, 2)
        size = (min(size[0], 2), size[1], *[min(length, most) for length in size[2:]])
    with _real():
        order = dims_by_stride(strides)
        made = torch.zeros([size[dim] for dim in order], dtype=tensor.dtype, device=tensor.device)
        return made.permute([order.index(dim) for dim in range(len(size))])


def _with_sizes_of_input(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name; of those that repeat sizes of the input, the sizes of this one."""
    values = arguments(op, args, kwargs)
    if "HxW" in values:
        batch, channels, *inner = values["input"].shape
        values |= {"N": batch, "C": channels, "HxW": math.prod(inner)}
    return values


def _has_unbacked(tensor: torch.Tensor) -> bool:
    return has_symbols(tensor) and any(map(is_unbacked, (*tensor.shape, *tensor.stride())))


def _layouts_found(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
    count: int,
    unbacked: int,
) -> tuple[Layout | None, ...]:
    """Return the layout of each of `count` results, with unbacked sizes of `unbacked`."""
    elements = _elements(tensors, unbacked)
    exact = elements <= SMALL and any(map(_has_choice_of_one, tensors))
    interleaved = any(map(is_interleaved, tensors))  # whose strides have no order
    small = is_pointwise(op) and not exact and not interleaved
    cropped = op_name(op) in CROPPED and elements > SMALL and not interleaved
    if not small and not cropped and elements > SMALL:
        return (None,) * count
    symbols = any(map(has_symbols, tensors))
    key = (exact, symbols, op, _kind(args, unbacked), _kind(kwargs, unbacked), _layouts(tensors, unbacked))
    layouts = _results.get(key)
    if layouts is None:
        if len(_results) >= MOST:
            _results.clear()
        twin = (
            _of_two_elements if small else partial(_cropped, _padding(args), unbacked) if cropped else Twins(unbacked)
        )
        real, named = _mapped(args, twin, unbacked), _mapped(kwargs, twin, unbacked)
        if cropped:
            real, named = (), _with_sizes_of_input(op, real, named)
        layouts = _results[key] = _layouts_of_real(op, real, named, count, exact=exact, keeps=exact and symbols)
    return layouts


def _has_no_choice(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a contiguous tensor's strides, along dimensions of size 1 too."""
    expected: Any = 1
    for length, step in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if step is not expected and not equal(step, expected):
            return False
        expected = expected * (length if is_symbolic(length) else max(length, 1))
    return True


def _has_choice_of_one(tensor: torch.Tensor) -> bool:
    return any(equal(length, 1) for length in tensor.shape) and not _has_no_choice(tensor)


def _layouts_of_real(
    op: OpOverload, args: Any, kwargs: Any, count: int, *, exact: bool, keeps: bool
) -> tuple[Layout | None, ...]:
    """Return the layout of each tensor of the real result; None where it is not dense, or empty.

    An unbacked number of elements (`nonzero`) may be 0 in a probe. `exact`: the arguments are as large as the call's;
    `keeps`: they have symbols, of which a result may have some.
    """
    with _real(), _generator_restored(op):
        try:
            real = list(tensors_in(quietly(lambda: op(*args, **kwargs))))
        except Exception:
            return (None,) * count
    if len(real) != count:
        return (None,) * count
    operands = list(tensors_in((*args, *kwargs.values()))) if keeps else []
    return tuple(_layout_of(one, operands, exact and not keeps) if _has_order(one) else None for one in real)


def _has_order(real: torch.Tensor) -> bool:
    return _is_plain(real) and real.numel() > 0 and memory_order(real) is not None


def _layout_of(real: torch.Tensor, operands: Sequence[torch.Tensor], exact: bool) -> Layout:
    """Return the strides themselves; or an operand's; or products of the sizes inside each dimension."""
    pairs = list(zip(real.shape, real.stride(), strict=True))
    within = [[dim for dim, (length, other) in enumerate(pairs) if length > 1 and other < step] for _, step in pairs]
    strides = real.stride()
    ones = tuple(dim for dim, length in enumerate(real.shape) if length == 1)
    if exact:
        return Layout(lambda size, _: strides, ones)
    if strides != tuple(math.prod(real.shape[dim] for dim in dims) for dims in within):
        for at, operand in enumerate(operands):
            if operand.shape == real.shape and operand.stride() == strides:
                return Layout(partial(_as_operand, at), ones)
    return Layout(lambda size, _: [math.prod(_at_least_one(size[dim]) for dim in dims) for dims in within], ones)


def _at_least_one(length: Any) -> Any:
    """Return the size that torch counts for the strides of outer dimensions: at least 1."""
    return torch.sym_max(length, 1) if is_symbolic(length) else max(length, 1)  # type: ignore[no-untyped-call]


def _as_operand(at: int, size: Sequence[Any], operands: Sequence[torch.Tensor]) -> Sequence[Any]:
    return operands[at].stride()


def _relaid(out: Any, layouts: Iterator[Layout | None], operands: Sequence[torch.Tensor]) -> Any:
    if isinstance(out, torch.Tensor):
        layout = next(layouts)
        if layout is None or (not has_symbols(out) and 0 in out.shape) or not layout.applies_to(out.shape):
            return out
        strides = layout.strides(out.shape, operands)
        if all_equal(strides, out.stride()):
            return out
        return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device)
    if isinstance(out, (list, tuple)):
        return (list if isinstance(out, list) else tuple)(_relaid(item, layouts, operands) for item in out)
    return out


def _known(key: Any, find: Callable[[], Verdict]) -> Verdict:
    found = _verdicts.get(key)
    if found is None:
        if len(_verdicts) >= MOST:
            _verdicts.clear()
        found = _verdicts[key] = find()
    return found


def _probed_small(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Verdict:
    """Return the verdict on few elements; the kernel may accept more where it refuses these."""
    if _is_large(op, args, kwargs, tensors):
        return UNKNOWN
    return _answer(op, _mapped(args, _of_few_elements), _mapped(kwargs, _of_few_elements))


def _probed_laid_out(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Verdict:
    if _elements(tensors) > LARGEST or _is_large(op, args, kwargs, tensors):
        return UNKNOWN
    twins = Twins()
    return _answer(op, _mapped(args, twins), _mapped(kwargs, twins))


def _moves_others(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a probe would draw from another generator than the CPU's default."""
    if not is_random(op):
        return False
    values = [*args, *kwargs.values()]
    devices = [value for value in values if isinstance(value, torch.device)]
    devices += [tensor.device for tensor in tensors_in(values)]
    return any(device.type != "cpu" for device in devices) or any(isinstance(one, torch.Generator) for one in values)


def may_end_all(op: OpOverload, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a probe might end the device's context: CUDA kernels check indices by asserts.

    Zeros may be no valid indices: pivots are counted from 1, and an empty dimension has none.
    """
    on_device = any(tensor.device.type == "cuda" for tensor in tensors)
    return on_device and not is_pointwise(op) and any(_may_be_indices(tensor) for tensor in tensors)


def _may_be_indices(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _generator_restored(op: OpOverload) -> AbstractContextManager[None]:
    return torch.random.fork_rng(devices=()) if is_random(op) else nullcontext()


def _is_plain(tensor: torch.Tensor) -> bool:
    return why_not_plain(tensor) is None and not (tensor.is_conj() or tensor.is_neg())


def _share(changed: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether written elements share memory with other operands."""
    storages = Counter(map(storage_id, tensors)) if changed else Counter()
    return any(overlaps_itself(one) or storages[storage_id(one)] > 1 for one in changed)


def _is_large(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the result may be large though the operands are small: made from sizes, or repeated."""
    values = arguments(op, args, kwargs)
    declared = {argument.name: str(argument.type) for argument in op._schema.arguments}
    ranged = "end" in values and "steps" not in values
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            sizes = [size for size in map(hint_or_guess, value) if type(size) is int and size > 0]
            large = math.prod(sizes) > LARGEST
        else:
            number = hint_or_guess(value)
            counted = not tensors and isinstance(number, (int, float)) and (ranged or declared[name] == "int")
            large = counted and math.isfinite(number) and abs(number) > LARGEST
        if large:
            return True
    return False


def _kind(value: Any, unbacked: int = UNBACKED_SIZES[0]) -> Any:
    """Return a hashable, equal for arguments of one kind: equal numbers of one type, similar tensors."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device, _few(value))
    if isinstance(value, (list, tuple)):
        return tuple(_kind(item, unbacked) for item in value)
    if isinstance(value, Mapping):
        return tuple((name, _kind(item, unbacked)) for name, item in sorted(value.items()))
    value = hint_assuming(value, unbacked)
    return (type(value), repr(value) if isinstance(value, float) else value)


def _mapped(value: Any, twin: Callable[[torch.Tensor], torch.Tensor], unbacked: int = UNBACKED_SIZES[0]) -> Any:
    if isinstance(value, torch.Tensor):
        return twin(value)
    if isinstance(value, (list, tuple)):
        return [_mapped(item, twin, unbacked) for item in value]
    if isinstance(value, Mapping):
        return {name: _mapped(item, twin, unbacked) for name, item in value.items()}
    return hint_assuming(value, unbacked)


def _of_two_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of at most two elements per dimension, with strides in the order of the fake's, 0 for 0."""
    size = _few(tensor)
    steps = _ranks(tensor) if has_symbols(tensor) else [int(step) for step in tensor.stride()]
    total, strides = 1, {0: 0}
    for step in sorted({*steps} - {0}):
        strides[step] = total
        total *= 2 ** steps.count(step)
    with _real():
        made = torch.zeros(total, dtype=tensor.dtype, device=tensor.device)
        return made.as_strided(size, [strides[step] for step in steps])


def _ranks(tensor: torch.Tensor) -> list[int]:
    """Return numbers in the order of symbolic strides, 0 for 0."""
    steps = tensor.stride()
    found = [0] * len(steps)
    rank = 0
    before: Any = 0
    for dim in reversed(dims_by_stride(steps)):
        if not equal(steps[dim], before):
            rank, before = rank + 1, steps[dim]
        found[dim] = rank
    return found


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    size = hint_assuming(tensor.untyped_storage().nbytes(), UNBACKED_SIZES[0])
    with _real():
        storage = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype, device="meta")
        return made.set_(storage, *_laid_out(tensor))


def _laid_out(tensor: torch.Tensor, unbacked: int = UNBACKED_SIZES[0]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return offset, sizes and strides, with hints for symbols."""
    size, stride = (
        tuple([hint_assuming(number, unbacked) for number in numbers]) for numbers in (tensor.shape, tensor.stride())
    )
    return hint_assuming(tensor.storage_offset(), unbacked), size, stride


def _few(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple([min(size if type(size) is int else hint_or_guess(size), 2) for size in tensor.shape])


def _of_few_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return at most two elements per dimension: some kernels check only operands of several elements."""
    with _real():
        return torch.zeros(_few(tensor), dtype=tensor.dtype, device=tensor.device)


class Twins:
    """Makes real tensors of zeros with the layouts of fakes, in storages shared as theirs are."""

    def __init__(self, unbacked: int = UNBACKED_SIZES[0]) -> None:
        self._unbacked = unbacked
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        key, size = storage_id(tensor), hint_assuming(tensor.untyped_storage().nbytes(), self._unbacked)
        with _real():
            made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            storage = self._storages.get(key)
            if storage is None:
                zeros = torch.zeros(size, dtype=torch.uint8, device=tensor.device)
                storage = self._storages[key] = zeros.untyped_storage()
            return made.set_(storage, *_laid_out(tensor, self._unbacked))


def _answer(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """Return the verdict of running the operator on real tensors, with the first line of an error."""
    with _real(), _generator_restored(op):
        try:
            out = quietly(lambda: op(*args, **kwargs))  # few elements may be too few
        except Exception as error:
            return Verdict(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}", certain=False)
    gives = next(filter(None, map(why_not_plain, tensors_in(out))), None)
    return ACCEPTED if gives is None else Verdict(gives=gives)


@contextmanager
def _real() -> Iterator[None]:
    """While active, operators run on real tensors, unseen by modes and by autograd."""
    with (
        unstable.DisableTorchFunction(),
        no_dispatch(),
        unstable.AutoDispatchBelowAutograd(),
        unstable.DisableAutocast(),
    ):
        yield
