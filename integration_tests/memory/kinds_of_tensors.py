"""Descriptions of tensors of any layout by all that a program can see of them: compiled calls beside eager ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import framesmith

Make = Callable[[], tuple[Any, ...]]
#: A function, and for each of its calls what makes the arguments.
Program = tuple[Callable[..., Any], Sequence[Make]]

COMPRESSED = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def described(value: Any) -> Any:
    """A comparable description: of a tensor its type, metadata, bits, and contents in its own layout."""
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value), *map(described, value)]
    if not isinstance(value, torch.Tensor):
        return value
    known = [type(value), value.dtype, value.layout, value.device, value.requires_grad, value.is_leaf]
    plain = value.detach()
    if value.is_nested:
        return [*known, *(described(part) for part in plain.unbind())]
    known += [tuple(value.shape), value.is_conj(), value.is_neg(), value._base is not None]
    if value.layout is torch.strided:
        known += [value.stride(), value.storage_offset()]
    return known if value.device.type == "meta" else [*known, *contents(plain)]


def contents(plain: torch.Tensor) -> list[Any]:
    """Return a description of a tensor without history."""
    if plain.is_quantized:
        return [plain.qscheme(), plain.int_repr().tolist(), plain.dequantize().tolist()]
    if plain.layout is torch.sparse_coo:
        return [plain.is_coalesced(), plain._indices().tolist(), plain._values()]
    if plain.layout in COMPRESSED:
        return [*(read(plain).tolist() for read in COMPRESSED[plain.layout]), plain.values()]
    return [(plain if plain.layout is torch.strided else plain.to_dense()).resolve_conj().resolve_neg()]


def memory_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage object; None without one."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def relations(tensors: Sequence[torch.Tensor], given: int) -> list[tuple[int, int | None, bool]]:
    """For each tensor the first that is the same object, the first in the same storage, and, of those that were given,
    whether it was changed.
    """
    memory = [memory_of(one) for one in tensors]
    return [
        (
            next(place for place, other in enumerate(tensors) if other is one),
            None if found is None else memory.index(found),
            at < given and not one.is_inference() and one._version > 0,
        )
        for at, (one, found) in enumerate(zip(tensors, memory, strict=True))
    ]


def gradients_of(results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[Any]:
    """Return the leaves' `.grad` after a backward pass of all results."""
    total: Any = 0
    for one in results:
        if one.requires_grad and not one.is_nested:
            dense = one if one.layout is torch.strided else one.to_dense()
            total = total + dense.abs().square().sum() + (dense.real if dense.is_complex() else dense).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
    return [described(one.grad) for one in leaves if one.is_leaf and one.requires_grad]


def outcomes(program: Callable[[], Program], compiler: Callable[..., Any], watch: bool = True) -> list[Any]:
    """Return each call's results, its arguments afterwards, shared memory and gradients, or its error."""
    torch.manual_seed(0)
    fn, calls = program()
    run = compiler(fn)
    parameters = [*fn.parameters(), *fn.buffers()] if isinstance(fn, torch.nn.Module) else []
    found: list[Any] = []
    for make in calls:
        given = make()
        met = [*tensors_in(given), *parameters]
        try:
            result = run(*given)
        except framesmith.FramesmithError:
            raise
        except Exception as error:
            found.append((type(error), described(given)))
            continue
        results = [*tensors_in(result)]
        found.append([described(result), described(met), relations([*met, *results], len(met))])
        found[-1].append(gradients_of(results, met))
    return found


def assert_same(ours: Any, eagers: Any, place: str = "") -> None:
    """Descriptions are equal, tensors among them within a tolerance."""
    if isinstance(eagers, torch.Tensor):
        if eagers.dtype.itemsize == 1 or eagers.dtype in (torch.uint16, torch.uint32, torch.uint64, torch.bits16):
            assert torch.equal(ours.view(torch.uint8), eagers.view(torch.uint8)), place
        else:
            torch.testing.assert_close(ours, eagers, equal_nan=True, msg=lambda text: f"{place}: {text}")
    elif isinstance(eagers, (list, tuple)):
        assert len(ours) == len(eagers), place
        for at, (one, other) in enumerate(zip(ours, eagers, strict=True)):
            assert_same(one, other, f"{place}.{at}")
    elif isinstance(eagers, dict):
        assert ours.keys() == eagers.keys(), place
        for key, other in eagers.items():
            assert_same(ours[key], other, f"{place}[{key!r}]")
    elif isinstance(eagers, float):
        assert type(ours) is float and math.isclose(ours, eagers, rel_tol=1e-5), f"{place}: {ours} in place of {eagers}"
    else:
        assert ours == eagers, f"{place}: {ours} in place of {eagers}"


def check(program: Callable[[], Program], **settings: Any) -> dict[str, int]:
    """The program compiled, where failures raise, does what it does eagerly. The counts of what was compiled."""
    eagers = outcomes(program, lambda fn: fn)
    framesmith.reset()
    ours = outcomes(program, lambda fn: framesmith.compile(fn, strict=True, **settings))
    assert_same(ours, eagers)
    return dict(framesmith.stats())
