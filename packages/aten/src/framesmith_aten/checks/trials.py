"""Whether an operator's real kernel takes such arguments: asked by running it, once for each kind of arguments.

Fake tensors accept types that a kernel refuses (a softmax of integers), numbers that a type cannot hold, and writes to
memory that is also read. A trial runs the operator on real tensors of the same types, devices and numbers: of few
elements, or, where memory is shared or few elements will not do, laid out as those given.
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
from framesmith_aten.operators import (
    acts_elsewhere,
    arguments,
    is_composite,
    is_custom,
    is_pointwise,
    is_random,
    is_view,
    is_view_by_strides,
    op_name,
    reads_workspace,
    tensors_in,
    written,
)
from framesmith_aten.symbolic import (
    all_equal,
    equal,
    has_symbols,
    hint,
    hint_assuming,
    is_symbolic,
    is_unbacked,
)
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import OpOverload, no_dispatch

#: Elements up to which real tensors are made as large as the fakes.
LARGEST: Final = 1 << 16
#: The same where only a layout is asked for.
SMALL: Final = 1 << 12
#: Operators that lay out large images otherwise than fakes of some release do: asked of few pixels.
CROPPED: Final = frozenset((
    "channel_shuffle", "native_group_norm", "reflection_pad2d", "reflection_pad3d", "replication_pad2d",
    "replication_pad3d",
))  # fmt: skip
#: What lengths that data tell are in a trial; the second where, of the first, a result's length came to be 1 or 0.
UNBACKED_SIZES: Final = (2, 8)
#: Answers kept, about 2 KiB each; a large model asks a few hundred different questions.
MOST: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial found: `refusal` is the kernel's error, None if it took the call or could not be asked.

    `certain`: it is known that the kernel takes the call. `gives`: the kind of a result that no graph holds, if it has
    one; fakes of quantized tensors do not tell.
    """

    refusal: str | None = None
    certain: bool = True
    gives: str | None = None


TAKEN: Final = Verdict()
UNKNOWN: Final = Verdict(certain=False)

#: The strides of a dense result, by its sizes and the call's operands.
Strides = Callable[[Sequence[Any], Sequence[torch.Tensor]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the strides of a dense result come about, and the dimensions of which it does not tell.

    Of those the trial's result had one element.
    """

    strides: Strides
    ones: tuple[int, ...]

    def tells(self, size: Sequence[Any]) -> bool:
        """Whether a result of these sizes is laid out so: it has one element wherever the trial's had one."""
        return all(equal(size[dim], 1) for dim in self.ones)


#: From an operator and the kind of its arguments, and, where few elements did not do, their layouts.
_verdicts: dict[Any, Verdict] = {}
_results: dict[Any, tuple[Layout | None, ...]] = {}


def verdict(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """What the operator's kernel says to arguments like these fakes, whatever data they hold.

    Not asked are operators that may refuse some data, read what fakes do not tell, or are not torch's own. The others
    are asked once in a process for each kind of arguments, and again where a call writes to memory that it also reads.
    Those that are told sizes are asked with tensors of these sizes: some read and write by them without a check.
    """
    if is_custom(op) or is_composite(op) or op.namespace != "aten" or reads_workspace(op) or acts_elsewhere(op):
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
        return _tried_laid_out(op, args, kwargs, tensors)
    kind = (op, torch.are_deterministic_algorithms_enabled(), _kind(args), _kind(kwargs))
    if any("size" in argument.name for argument in op._schema.arguments):
        return _known((kind, _layouts(tensors)), lambda: _tried_laid_out(op, args, kwargs, tensors))
    small = _known(kind, lambda: _tried_small(op, args, kwargs, tensors))
    if small.refusal is None:
        return small
    return _known((kind, _layouts(tensors)), lambda: _tried_laid_out(op, args, kwargs, tensors))


def _shown(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """What a view says, asked of memory that nobody uses: torch's fakes show some that the views themselves do not.

    Those are views along a dimension that is not there, in sizes that no strides make, and beyond the end of memory.
    """
    values = arguments(op, args, kwargs)
    if is_view_by_strides(op):  # asked, it would make the fake's memory larger
        beyond = why_may_fail(op, args, kwargs)
        return TAKEN if beyond is None else Verdict(f"RuntimeError: {beyond}", certain=False)
    tensor = next(tensors_in(list(values.values())))
    known = values.get("dim")
    if -tensor.dim() <= known < tensor.dim() if isinstance(known, int) else is_contiguous(tensor):
        return TAKEN
    return _answer(op, _mapped(args, _without_memory), _mapped(kwargs, _without_memory))


def _layouts(tensors: Sequence[torch.Tensor], told: int = UNBACKED_SIZES[0]) -> tuple[Any, ...]:
    return tuple(_laid_out(tensor, told)[1:] for tensor in tensors)


def _elements(tensors: Sequence[torch.Tensor], told: int = UNBACKED_SIZES[0]) -> int:
    return sum(hint_assuming(tensor.numel(), told) for tensor in tensors)


def as_laid_out(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
    """The fake result of a call, with the strides that the real kernel gives it.

    Meta kernels lay results of arguments that are not contiguous out in ways of their own, and along dimensions of one
    element those of all arguments. Asked are pointwise operators, of two elements along each dimension, those of
    CROPPED, of few pixels, and small calls of others, or with such dimensions.
    """
    made = list(tensors_in(out))
    tensors = list(tensors_in((*args, *kwargs.values())))
    if not made or (not _orders_by_arguments(op) and all(map(_has_no_choice, filter(_is_plain, tensors)))):
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
    for told in UNBACKED_SIZES if any(map(_has_unbacked, tensors)) else UNBACKED_SIZES[:1]:
        layouts = _layouts_found(op, args, kwargs, tensors, len(made), told)
        if all(one is None or one.tells(result.shape) for one, result in zip(layouts, made, strict=True)):
            break
    return _relaid(out, iter(layouts), tensors)


def _orders_by_arguments(op: OpOverload) -> bool:
    """Whether contiguous tensors are laid out anew, too: by Fourier transforms. Fakes of torch 2.11 are not."""
    return op_name(op).startswith("_fft_")


def _padding(args: Sequence[Any]) -> int:
    """The largest number in the lists among the arguments; paddings have to be less than what they pad."""
    return max((abs(size) for value in args if isinstance(value, (list, tuple)) for size in _ints(value)), default=0)


def _ints(values: Sequence[Any]) -> list[int]:
    return [value for value in map(hint, values) if type(value) is int]


def _cropped(padding: int, told: int, tensor: torch.Tensor) -> torch.Tensor:
    """An image of few pixels, and at most two of a batch, in the order of the fake's strides; else as it is."""
    _, size, strides = _laid_out(tensor, told)
    if len(size) >= 4:
        most = max(padding + 1, 2)
        size = (min(size[0], 2), size[1], *[min(length, most) for length in size[2:]])
    with _real():
        order = dims_by_stride(strides)
        made = torch.zeros([size[dim] for dim in order], dtype=tensor.dtype, device=tensor.device)
        return made.permute([order.index(dim) for dim in range(len(size))])


def _given_sizes_again(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name; of those that are the lengths of its input, the lengths that this input has."""
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
    told: int,
) -> tuple[Layout | None, ...]:
    """For each of `count` results how it is laid out where data tell that lengths are `told`."""
    elements = _elements(tensors, told)
    exact = elements <= SMALL and any(map(_has_choice_of_one, tensors))
    interleaved = any(map(is_interleaved, tensors))  # of which no order tells
    small = is_pointwise(op) and not exact and not interleaved
    cropped = op_name(op) in CROPPED and elements > SMALL and not interleaved
    if not small and not cropped and elements > SMALL:
        return (None,) * count
    symbols = any(map(has_symbols, tensors))
    key = (exact, symbols, op, _kind(args, told), _kind(kwargs, told), _layouts(tensors, told))
    layouts = _results.get(key)
    if layouts is None:
        if len(_results) >= MOST:
            _results.clear()
        twin = _of_two_elements if small else partial(_cropped, _padding(args), told) if cropped else Twins(told)
        real, named = _mapped(args, twin, told), _mapped(kwargs, twin, told)
        if cropped:
            real, named = (), _given_sizes_again(op, real, named)
        layouts = _results[key] = _layouts_of_real(op, real, named, count, exact=exact, keeps=exact and symbols)
    return layouts


def _has_no_choice(tensor: torch.Tensor) -> bool:
    """Whether a tensor is contiguous along dimensions of one element, too."""
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
    """For each tensor of the real result how its strides come about; None where it is not dense, or tells nothing.

    What is empty has no order: of as many elements as data tell (`nonzero`), none may have been asked for.
    `exact`: the arguments are as large as those of the call; `keeps`: these have symbols, of which a result keeps some.
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
    """The strides themselves; an operand's; else, for each dimension, the number of elements that lie within it."""
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
    """How many elements torch counts along a dimension for the strides of those around it."""
    return torch.sym_max(length, 1) if is_symbolic(length) else max(length, 1)  # type: ignore[no-untyped-call]


def _as_operand(at: int, size: Sequence[Any], operands: Sequence[torch.Tensor]) -> Sequence[Any]:
    return operands[at].stride()


def _relaid(out: Any, layouts: Iterator[Layout | None], operands: Sequence[torch.Tensor]) -> Any:
    if isinstance(out, torch.Tensor):
        layout = next(layouts)
        if layout is None or (not has_symbols(out) and 0 in out.shape) or not layout.tells(out.shape):
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


def _tried_small(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Verdict:
    """What the kernel says to few elements; where it refuses these, it may take more."""
    if _is_large(op, args, kwargs, tensors):
        return UNKNOWN
    return _answer(op, _mapped(args, _of_few_elements), _mapped(kwargs, _of_few_elements))


def _tried_laid_out(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Verdict:
    if _elements(tensors) > LARGEST or _is_large(op, args, kwargs, tensors):
        return UNKNOWN
    twins = Twins()
    return _answer(op, _mapped(args, twins), _mapped(kwargs, twins))


def _moves_others(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a trial would draw from another generator than the CPU's own."""
    if not is_random(op):
        return False
    values = [*args, *kwargs.values()]
    devices = [value for value in values if isinstance(value, torch.device)]
    devices += [tensor.device for tensor in tensors_in(values)]
    return any(device.type != "cpu" for device in devices) or any(isinstance(one, torch.Generator) for one in values)


def may_end_all(op: OpOverload, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a trial might end the device's context: on CUDA, where zeros are no places, kernels check by asserts.

    Pivots are counted from 1, and in what is empty there is no first place.
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
    """Whether elements that are written lie where others do."""
    storages = Counter(map(storage_id, tensors)) if changed else Counter()
    return any(overlaps_itself(one) or storages[storage_id(one)] > 1 for one in changed)


def _is_large(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the result may be large though the arguments are small: made from sizes, or repeated."""
    values = arguments(op, args, kwargs)
    declared = {argument.name: str(argument.type) for argument in op._schema.arguments}
    ranged = "end" in values and "steps" not in values
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            large = math.prod(_sizes(value)) > LARGEST
        else:
            number = hint(value)
            counted = not tensors and isinstance(number, (int, float)) and (ranged or declared[name] == "int")
            large = counted and math.isfinite(number) and abs(number) > LARGEST
        if large:
            return True
    return False


def _sizes(values: Sequence[Any]) -> list[int]:
    return [size for size in map(hint, values) if type(size) is int and size > 0]


def _kind(value: Any, told: int = UNBACKED_SIZES[0]) -> Any:
    """Hashable, and equal for arguments that a kernel treats alike: equal numbers of one type, similar tensors."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device, _few(value))
    if isinstance(value, (list, tuple)):
        return tuple(_kind(item, told) for item in value)
    if isinstance(value, Mapping):
        return tuple((name, _kind(item, told)) for name, item in sorted(value.items()))
    value = hint_assuming(value, told)
    return (type(value), repr(value) if isinstance(value, float) else value)


def _mapped(value: Any, twin: Callable[[torch.Tensor], torch.Tensor], told: int = UNBACKED_SIZES[0]) -> Any:
    if isinstance(value, torch.Tensor):
        return twin(value)
    if isinstance(value, (list, tuple)):
        return [_mapped(item, twin, told) for item in value]
    if isinstance(value, Mapping):
        return {name: _mapped(item, twin, told) for name, item in value.items()}
    return hint_assuming(value, told)


def _of_two_elements(tensor: torch.Tensor) -> torch.Tensor:
    """At most two elements along each dimension, strides in the order of the fake's: equal where they are, and 0."""
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
    """Numbers in the order of symbolic strides; 0 for 0."""
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


def _laid_out(tensor: torch.Tensor, told: int = UNBACKED_SIZES[0]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset, sizes and strides, of symbols as they are at present; lengths that data tell as told."""
    size, stride = (
        tuple([hint_assuming(number, told) for number in numbers]) for numbers in (tensor.shape, tensor.stride())
    )
    return hint_assuming(tensor.storage_offset(), told), size, stride


def _few(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple([min(size if type(size) is int else hint(size), 2) for size in tensor.shape])


def _of_few_elements(tensor: torch.Tensor) -> torch.Tensor:
    """At most two along each dimension: some kernels check what they do to more than one, and not to one."""
    with _real():
        return torch.zeros(_few(tensor), dtype=tensor.dtype, device=tensor.device)


class Twins:
    """Real tensors full of zeros, laid out as the fakes they stand for, in storages shared as theirs are."""

    def __init__(self, told: int = UNBACKED_SIZES[0]) -> None:
        self._unbacked = told
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of one fake."""
        key, size = storage_id(tensor), hint_assuming(tensor.untyped_storage().nbytes(), self._unbacked)
        with _real():
            made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            storage = self._storages.get(key)
            if storage is None:
                zeros = torch.zeros(size, dtype=torch.uint8, device=tensor.device)
                storage = self._storages[key] = zeros.untyped_storage()
            return made.set_(storage, *_laid_out(tensor, self._unbacked))


def _answer(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verdict:
    """The verdict of the operator run on real tensors; of an error, its first line."""
    with _real(), _generator_restored(op):
        try:
            out = quietly(lambda: op(*args, **kwargs))  # few elements may be too few
        except Exception as error:
            return Verdict(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}", certain=False)
    gives = next(filter(None, map(why_not_plain, tensors_in(out))), None)
    return TAKEN if gives is None else Verdict(gives=gives)


@contextmanager
def _real() -> Iterator[None]:
    """While active, operators run on real tensors, unseen by any mode and unrecorded by autograd."""
    with (
        unstable.DisableTorchFunction(),
        no_dispatch(),
        unstable.AutoDispatchBelowAutograd(),
        unstable.DisableAutocast(),
    ):
        yield
