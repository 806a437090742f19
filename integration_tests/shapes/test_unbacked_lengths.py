"""A tensor of an unbacked length beside one as long as an input: equal, broadcast, or an error, as in eager mode.

Torch assumes that the lengths are equal; kernels that do so as well read beyond the shorter one's memory.
Programs are compiled for the sizes that are met or for any, and with gradients or without, in turn, and each use meets
some of the ways to make such a length; in long runs, `FRAMESMITH_LONG=1`, all of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
from integration_tests.harness.sweeps import a_part, in_turn

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mask": lambda x: x[x > 0],
    "repeat": lambda x: torch.repeat_interleave(x, (x > 0).long()),
    "unique": lambda x: x.clamp(min=0).unique()[1:],
}
USED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "added": lambda y, v: y + v,
    "added, unused": lambda y, v: (y + v, y * 2)[1],
    "compared": lambda y, v: (y == v).sum(),
    "chosen": lambda y, v: torch.where(y > 0, v, y),
    "three operands": lambda y, v: torch.addcmul(y, v, v),
    "concatenated": lambda y, v: torch.cat([y, v]),
    "stacked": lambda y, v: torch.stack([y, v]),
    "dot product": lambda y, v: y @ v,
    "matrix and vector": lambda y, v: torch.outer(y, y) @ v,
    "added in place": lambda y, v: (y * 1).add_(v),
    "copied": lambda y, v: (y * 1).copy_(v),
    "an input changed": lambda y, v: y.mul_(v) * 1,
    "loss": lambda y, v: F.mse_loss(y, v, reduction="sum"),
    "outer": lambda y, v: y[:, None] * v,
    "expanded": lambda y, v: v.expand_as(y) * 2,
    "broadcast": lambda y, v: torch.broadcast_tensors(y, v)[1] * 1,
    "rows": lambda y, v: (torch.outer(y, y) + v).softmax(-1),
    "columns": lambda y, v: (torch.outer(y, y) + v[:, None]).sum(0),
    "indices": lambda y, v: y.index_add(0, torch.arange(v.shape[0]), v),
    "reshaped": lambda y, v: v.reshape(y.shape) * 2,
    "scattered": lambda y, v: y.scatter(0, torch.arange(v.shape[0]), v),
}
#: The unbacked length, and the length of the other.
LENGTHS = ((5, 5), (6, 6), (1, 7), (5, 4), (5, 1), (1, 1), (2, 1), (7, 7), (0, 3), (0, 0), (0, 1))


def seen(run: Callable[..., torch.Tensor], count: int, length: int) -> list[torch.Tensor] | None:
    """The result, the operand after the call, and its gradient; None for an error."""
    data = torch.cat([torch.arange(1.0, count + 1), -torch.ones(2)])
    leaf = torch.linspace(-1, 1, length).requires_grad_()
    operand = leaf * 1
    try:
        result = run(data, operand)
    except (RuntimeError, IndexError):
        return None
    if result.requires_grad:
        (result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum().backward()
    return [result.detach(), operand.detach(), *([] if leaf.grad is None else [leaf.grad])]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("used", "made"), in_turn(USED, [*MADE], each=2))
def test_an_unbacked_length_beside_another(used: str, made: str) -> None:
    def program(data: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
        return USED[used](operand, MADE[made](data))

    run = framesmith.compile(program, dynamic=True)
    for count, length in LENGTHS:
        found: list[Any] = [seen(one, count, length) for one in (program, run)]
        assert (found[0] is None) == (found[1] is None), (count, length)
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


#: Of an input itself: torch remembers with it how many they are.
REMEMBERED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "indices": lambda x: x.clamp(min=0).nonzero()[:, 0].to(x.dtype),
    "indices of an input": lambda x: x.nonzero()[:, 0].to(x.dtype),
    "unique": lambda x: x.unique(),
    "unique neighbours": lambda x: x.unique_consecutive(),
    "selected": lambda x: x.masked_select(x > 0),
    "the first": lambda x: x[: (x > 0).sum().item()],
    "but the last": lambda x: x[: x.shape[0] - (x == 0).sum().item()],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "dynamic"), in_turn(a_part(itertools.product(USED, REMEMBERED), 5), [None, True]))
def test_an_unbacked_length_beside_a_fixed_one(case: tuple[str, str], dynamic: bool | None) -> None:
    used, made = case

    def program(data: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
        return USED[used](operand.take(torch.tensor([1, 0])), REMEMBERED[made](data))

    framesmith.reset()
    run = framesmith.compile(program, dynamic=dynamic)
    operand = torch.tensor([0.5, 2.0, 3.0])
    for data in ([1.0, 2.0], [1.0, 1.0], [1.0, 2.0, 3.0], [0.0], [3.0, 0.0, 0.0, 1.0], [], [2.0, 1.0, 1.0]):
        found: list[Any] = []
        for call in (program, run):
            try:
                found.append(call(torch.tensor(data), operand))
            except (RuntimeError, IndexError):
                found.append(None)
        assert (found[0] is None) == (found[1] is None), data
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


#: Of slices, `k` being unbacked, beside tensors of other lengths: `x` has six rows of two, `w` three.
SLICED: dict[str, Callable[[torch.Tensor, torch.Tensor, int], Any]] = {
    "the first": lambda x, w, k: x[:k] + w,
    "from there on": lambda x, w, k: x[k:] * w,
    "three from there on": lambda x, w, k: x[k : k + 3] + w,
    "but the first": lambda x, w, k: x[1:k] + w,
    "the last": lambda x, w, k: x[-k:] + w,
    "columns": lambda x, w, k: x[:, :k] + w[:1],
    "twice as many": lambda x, w, k: x[: k * 2] + x,
    "all of it": lambda x, w, k: (w[:k] - w).pow(2).mean(),
    "a slice of the slice": lambda x, w, k: x[:k][:3] + w,
    "two of one length": lambda x, w, k: x[:k] + w * 2 + x[:k],
    "expanded": lambda x, w, k: x[:k].expand(3, 2) * 1,
    "seen as": lambda x, w, k: x[:k].view(3, 2) * 1,
    "turned": lambda x, w, k: x[:k].t() @ w,
    "stacked": lambda x, w, k: torch.stack([x[:k], w]),
    "beside": lambda x, w, k: torch.cat([x[:k], w], 1),
    "chosen": lambda x, w, k: torch.where(x[:k] > 2, w, 0.0),
    "masked": lambda x, w, k: w.clone().masked_fill_(x[:k] > 2, 0.0),
    "matmuls": lambda x, w, k: torch.addmm(x[:k], w, torch.eye(2)),
    "written to": lambda x, w, k: _with(x * 1, slice(k), w),
    "written to further on": lambda x, w, k: _with(x * 1, slice(k, k + 3), w),
    "columns written to": lambda x, w, k: _with(x * 1, (slice(None), slice(k)), w[:1]),
    "read to write": lambda x, w, k: _with(x * 1, slice(3), x[:k]),
    "added to in place": lambda x, w, k: (y := x * 1, y[:k].add_(w))[0],
    "columns multiplied": lambda x, w, k: (y := x * 1, y[:, :k].mul_(w[:1]))[0],
    "scattered": lambda x, w, k: torch.slice_scatter(x * 1, w, 0, 0, k),
    "at the first indices": lambda x, w, k: x.clone().index_put_((torch.arange(k),), w),
    "scattered by indices": lambda x, w, k: w.scatter(0, torch.arange(k)[:, None].expand(-1, 2), w * 2),
    "asserted": lambda x, w, k: (y := x[:k], torch._check(y.shape[0] == 3))[0] * 2,
}


def _with(y: torch.Tensor, place: Any, value: torch.Tensor) -> torch.Tensor:
    y[place] = value
    return y


#: For which sizes a program is compiled, and whether gradients are asked for.
COMPILED = ((None, False), (True, True), (None, True), (True, False))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("sliced", "way"), in_turn(SLICED, COMPILED))
def test_an_unbacked_slice_beside_a_fixed_length(sliced: str, way: tuple[bool | None, bool]) -> None:
    """That it has the length it meets is checked of what the slice itself gives, which is not left out for that."""
    dynamic, gradients = way

    def program(x: torch.Tensor, w: torch.Tensor, count: torch.Tensor) -> Any:
        return SLICED[sliced](x, w, count.item())

    def run_with(run: Callable[..., Any], count: int) -> list[torch.Tensor | None] | None:
        leaves = [torch.arange(1.0, 13).view(6, 2).requires_grad_(gradients), torch.arange(6.0).view(3, 2)]
        leaves[1].requires_grad_(gradients)
        try:
            result = run(leaves[0] * 1, leaves[1] * 1, torch.tensor(count))
        except (RuntimeError, IndexError):
            return None
        try:
            (result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum().backward()
        except RuntimeError:  # without gradients, and where eager mode has none of such lengths
            return [result.detach()]
        return [result.detach(), *(leaf.grad for leaf in leaves)]

    for first in (3, 1):
        framesmith.reset()
        run = framesmith.compile(program, dynamic=dynamic)
        for count in (first, 3, 1, 2, 0, 5, 6):
            found = [run_with(one, count) for one in (program, run)]
            assert (found[0] is None) == (found[1] is None), count
            torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


#: Of two tensors of unbacked lengths.
BOTH: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "stacked": lambda a, b: torch.stack([a, b]),
    "added": lambda a, b: a + b,
    "matmuls": lambda a, b: (a * b).sum() + a.sum(),
    "chosen": lambda a, b: torch.where(a > 1, a, b),
    "copied": lambda a, b: (a * 1).copy_(b),
    "dot product": lambda a, b: a @ b,
    "compared, unused": lambda a, b: (a == b, a * 2)[1],
    "concatenated": lambda a, b: torch.cat([a, b]) * 2,
}


#: Of slices of unbacked lengths, or between unbacked offsets.
SLICES: dict[str, Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]] = {
    "added": lambda x, y, k, j: x[:k] + y[:j],
    "of one tensor": lambda x, y, k, j: x[:k] + x[:j],
    "the rest": lambda x, y, k, j: x[k:] * y[j:],
    "matmuls": lambda x, y, k, j: x[:k].t() @ y[:j],
    "stacked": lambda x, y, k, j: torch.stack([x[:k], y[:j]]),
    "concatenated": lambda x, y, k, j: torch.cat([x[:k], y[:j]]) * 2,
    "copied": lambda x, y, k, j: (x[:k] * 1).copy_(y[:j]),
    "written to": lambda x, y, k, j: _with(x * 1, slice(k), y[:j]),
    "written to the same": lambda x, y, k, j: _with(x * 1, slice(k), y[:k]),
    "written further on": lambda x, y, k, j: _with(x * 1, slice(k, k + j), y[:j]),
    "zeros further on": lambda x, y, k, j: _with(x * 1, slice(k, k + j), torch.zeros(j, 2)),
    "written between": lambda x, y, k, j: _with(x * 1, slice(k, j), y[:2]),
    "a slice of the slice": lambda x, y, k, j: x[:k][:j] + y[:j],
    "between": lambda x, y, k, j: x[j:k] + y[j:k],
    "repeated": lambda x, y, k, j: x[:k].repeat(j, 1) + 1,
    "narrow": lambda x, y, k, j: x.narrow(0, j, k) + y[:k],
    "masked": lambda x, y, k, j: x[:k].clone().masked_fill_(y[:j] > 3, 0.0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("sliced", "dynamic"), in_turn(SLICES, [None, True]))
def test_two_unbacked_slices(sliced: str, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return SLICES[sliced](x, y, one.item(), two.item())

    def run_with(run: Callable[..., torch.Tensor], one: int, two: int) -> torch.Tensor | None:
        x = torch.arange(12.0).view(6, 2)
        try:
            return run(x, x.flip(0), torch.tensor(one), torch.tensor(two))
        except RuntimeError:
            return None

    for first in ((3, 3), (1, 2)):
        framesmith.reset()
        run = framesmith.compile(program, dynamic=dynamic)
        for pair in (first, (3, 3), (1, 3), (3, 1), (2, 4), (0, 3), (3, 0), (0, 0), (1, 1), (6, 6), (5, 2), (7, 3)):
            found = [run_with(call, *pair) for call in (program, run)]
            assert (found[0] is None) == (found[1] is None), pair
            torch.testing.assert_close(found[0], found[1])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("used", "dynamic"), in_turn(BOTH, [None, True]))
def test_two_unbacked_lengths(used: str, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return BOTH[used](x[x > 0], y[y > 0])

    for first in ((3, 3), (5, 0), (2, 1)):
        framesmith.reset()
        run = framesmith.compile(program, dynamic=dynamic)
        for one, two in (first, (5, 0), (0, 5), (4, 4), (1, 4), (4, 1), (5, 3), (0, 0), (1, 1), (0, 1)):
            found: list[Any] = []
            for call in (program, run):
                try:
                    found.append(call(torch.ones(one), torch.cat([torch.full((two,), 2.0), torch.zeros(2)])))
                except RuntimeError:
                    found.append(None)
            assert (found[0] is None) == (found[1] is None), (one, two)
            torch.testing.assert_close(found[0], found[1])


Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def _put(y: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    y = y * 1
    y[mask] = values
    return y


def _put_and_selected(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> Any:
    put = _put(y, x > 0, x[x > 0] * 2)
    chosen = torch.masked_select(put, y > 0.3)
    return put, chosen, chosen[::2], x[mask]


def _behind(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> Any:
    copy = x.clone()
    view = copy[mask.sum().item() :]
    view.mul_(2)
    return copy, view * 1, y * 3


def _split(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> Any:
    first, second = torch.split(x, torch.stack([mask.sum(), (~mask).sum()]).tolist())
    return first.sum(0), second * 2, y * 3


#: Of two leaves and a mask; what is put where a mask is true has a length in the backward pass alone.
GRADIENTS: dict[str, Program] = {
    "one number put": lambda x, y, mask: (_put(y, mask, x[:1] * 2), x * 3),
    "put, and selected": _put_and_selected,
    "changed behind a place": _behind,
    "split": _split,
    "sums so far": lambda x, y, mask: (x[mask].cumsum(0), torch.cumsum(y[mask], dim=-1, dtype=torch.float64)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_by_unbacked_lengths(name: str, dynamic: bool | None) -> None:
    program = GRADIENTS[name]
    run = framesmith.compile(program, dynamic=dynamic, strict=True)
    for length in (5, 6, 8, 1, 2):
        results = len(program(torch.ones(length), torch.ones(length), torch.ones(length) > 0))
        for wanted in (range(results), *([one] for one in range(results))):  # some gradients do not come
            found: list[Any] = []
            for call in (program, run):
                x = torch.linspace(-1, 1, length).requires_grad_()
                y = torch.linspace(1, -2, length).requires_grad_()
                got = call(x, y, torch.arange(length) % 2 == 0)
                sum(got[at].sum() * (at + 1) for at in wanted).backward()
                found.append([[one.detach() for one in got], x.grad, y.grad])
            torch.testing.assert_close(found[1], found[0])


def test_a_split_of_nothing_by_unbacked_lengths() -> None:
    run = framesmith.compile(lambda x, lengths: torch.split(x, lengths.tolist())[-1] * 2, dynamic=True, strict=True)
    for length in (0, 3):
        x, lengths = torch.ones(2 * length, 2), torch.tensor([length, length])
        assert torch.equal(run(x, lengths), torch.full((length, 2), 2.0))


def test_a_ninth_unbacked_number() -> None:
    """Its name in the launcher, u8, is that of the bytes of an arena too."""

    def program(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[begin:end].sum(0) for begin, end in itertools.pairwise(positions.tolist())])

    run = framesmith.compile(program, dynamic=True, strict=True)
    for length in (1, 8):
        x, positions = torch.randn(length, 2), torch.tensor([0, length // 3, length // 2, length])
        torch.testing.assert_close(run(x, positions), program(x, positions))
