"""Graphs that change inputs with shared memory: compiled over that memory, or one warning says why not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import framesmith

Layout = Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def both(a: torch.Tensor, c: torch.Tensor) -> Any:
    a.mul_(2)
    c.add_(1)
    return a.sum() + c.sum()


def copied(a: torch.Tensor, c: torch.Tensor) -> Any:
    c.copy_(c.flip(0) * 3)
    a.add_(c.sum())
    return c.sum(), a


def part(a: torch.Tensor, c: torch.Tensor) -> Any:
    a[1:].mul_(5)
    return c[1:], a.sum()


def filled(a: torch.Tensor, c: torch.Tensor) -> Any:
    before = c + 1
    a.zero_()
    return before, a + 1, c.sum()


def before_a_break(a: torch.Tensor, c: torch.Tensor) -> Any:
    a.add_(torch.ones_like(a))
    print(end="")
    return c * 2


def without_gradients(a: torch.Tensor, c: torch.Tensor) -> Any:
    with torch.no_grad():
        a.mul_(c.mean())
    return a.exp(), c.exp()


def random_numbers(a: torch.Tensor, c: torch.Tensor) -> Any:
    a.copy_(torch.rand_like(a))
    return c * 2, a[..., 0]


PROGRAMS = (both, copied, part, filled, before_a_break, without_gradients, random_numbers)


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def of(base: torch.Tensor, *views: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return (*(view(base) for view in views), base)


def reinterpreted() -> Any:
    return of(torch.arange(8) + (1 << 62), *(lambda b, at=at: b[at : at + 4].view(torch.float64) for at in (0, 2)))


#: Views that meet, by how they do.
LAYOUTS: dict[str, Layout] = {
    "halves": lambda: of(numbers(6), lambda b: b[:4], lambda b: b[2:]),
    "a row and all rows": lambda: of(numbers(3, 4), lambda b: b[1], lambda b: b),
    "transposed": lambda: of(numbers(4, 4), lambda b: b, lambda b: b.t()),
    "columns": lambda: of(numbers(4, 4), lambda b: b[:, :2], lambda b: b[:, 1:3]),
    "detached": lambda: of(numbers(8), lambda b: b.detach(), lambda b: b),
    "data": lambda: of(numbers(8), lambda b: b.data, lambda b: b.detach()),
    "interleaved": lambda: of(numbers(8), lambda b: b[::2], lambda b: b[1::2]),
    "strided": lambda: of(numbers(12), lambda b: b.as_strided((2, 3), (4, 1), 2), lambda b: b[4:8]),
    "one element": lambda: of(numbers(4), lambda b: b[1:2], lambda b: b),
    "other numbers": reinterpreted,
    "far in": lambda: of(numbers(40), lambda b: b[20:26], lambda b: b[23:29]),
}


def outcome(run: Callable[..., Any], layout: Layout) -> Any:
    a, c, base = layout()
    before = [t._version for t in (a, c, base)]
    torch.manual_seed(0)
    result = run(a, c)
    after = [t._version for t in (a, c, base)]
    return result, a, c, base, [now > then for now, then in zip(after, before, strict=True)]


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return found.dtype == wanted.dtype and torch.allclose(found, wanted, equal_nan=True)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    framesmith.reset()
    yield
    framesmith.reset()


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_compiled_and_eagers(program: Callable[..., Any], layout: str) -> None:
    compiled = framesmith.compile(program, strict=True, fullgraph=program is not before_a_break)
    for _ in range(2):
        assert same(outcome(compiled, LAYOUTS[layout]), outcome(program, LAYOUTS[layout]))
    stats = framesmith.stats()
    assert stats["graphs"] == 1 + (program is before_a_break) and not stats["recompilations"]


@pytest.mark.parametrize("program", [both, part, filled])
def test_one_layout_after_another(program: Callable[..., Any]) -> None:
    """And tensors that do not overlap, in the memory of one or of several."""
    separate: dict[str, Layout] = {
        "separate": lambda: of(numbers(8), lambda b: b[:4], lambda b: b[4:]),
        "of two": lambda: (numbers(4), numbers(4) + 1, numbers(1)),
    }
    layouts = {name: LAYOUTS[name] for name in ("halves", "interleaved")} | separate
    compiled = framesmith.compile(program, fullgraph=True, strict=True)
    for names in (layouts, reversed(layouts), layouts):
        for name in names:
            assert same(outcome(compiled, layouts[name]), outcome(program, layouts[name])), name
    assert framesmith.stats()["graphs"] <= 4


def within_no_grad(a: torch.Tensor, c: torch.Tensor) -> Any:
    with torch.no_grad():
        return both(a, c)


def of_one_array() -> Any:
    array = np.arange(8, dtype=np.float32)
    return torch.from_numpy(array), torch.from_numpy(array), torch.from_numpy(array)


def with_gradients() -> Any:
    return of(numbers(6).requires_grad_(), lambda b: b[:4], lambda b: b[2:])


def of_two_types() -> Any:
    return of(numbers(8), lambda b: b[:4], lambda b: b[2:6].view(torch.int32))


def of_much_memory() -> Any:
    return of(numbers(100_000), lambda b: b[-4:], lambda b: b[-6:-2])


@pytest.mark.parametrize(
    ("program", "layout", "reason"),
    [
        (both, of_one_array, "several storages"),
        (within_no_grad, with_gradients, "takes part in gradients"),
        (both, of_two_types, "several types"),
        (both, of_much_memory, "a small part of their memory"),
    ],
)
def test_what_is_not_compiled_warns_and_is_right(program: Callable[..., Any], layout: Layout, reason: str) -> None:
    wanted = outcome(program, layout)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        compiled = framesmith.compile(program)
        for _ in range(2):
            assert same(outcome(compiled, layout), wanted)
    ours = [str(w.message) for w in reported if issubclass(w.category, framesmith.FramesmithWarning)]
    assert len(ours) == 1 and "a graph runs operation by operation" in ours[0] and reason in ours[0]
    with pytest.raises(RuntimeError, match=f"fullgraph=True, but {program.__name__} runs eagerly: .* {reason}"):
        framesmith.compile(program, fullgraph=True)(*layout()[:2])


def test_in_inference_mode() -> None:
    compiled = framesmith.compile(both, fullgraph=True, strict=True)
    with torch.inference_mode():
        results = []
        for run in (both, compiled, compiled):
            base = numbers(6)
            results.append((run(base[:4], base[2:]), base))
        assert all(same(found, results[0]) for found in results)


def test_with_dynamic_shapes() -> None:
    def shifted(b: torch.Tensor, n: int) -> torch.Tensor:
        return both(b[:n], b[1:])

    compiled = framesmith.compile(lambda a, c: both(a, c))
    for size in (4, 5, 7):
        base, other = numbers(size), numbers(size)
        assert same(compiled(base[:-1], base[1:]), shifted(other, size - 1)) and same(base, other)


def test_an_error_leaves_the_memory_as_it_was() -> None:
    def indexed(a: torch.Tensor, c: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return c[index]

    base = numbers(6)
    compiled = framesmith.compile(indexed)
    assert same(compiled(base[:4], base[2:], torch.tensor([1])), torch.tensor([6.0]))
    with pytest.raises(IndexError):
        compiled(base[:4], base[2:], torch.tensor([9]))
    assert same(base, torch.tensor([0.0, 4.0, 8.0, 12.0, 4.0, 5.0]))  # multiplied once by each call, as in eager mode


def _both_written(x, y):
    y.add_(1)
    x.mul_(3)
    return x + y


def _read_and_written(x, y):
    z = y * 2
    x.mul_(3)
    return z + y


@pytest.mark.filterwarnings("ignore:.*operation by operation")
@pytest.mark.parametrize("program", [_both_written, _read_and_written])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_of_as_many_elements(program, length, dynamic):
    """Of one element each, their sizes are numbers where others' are symbols, too: their fakes do not overlap."""
    framesmith.reset()
    compiled = framesmith.compile(program, dynamic=dynamic)
    for _ in range(2):
        x, mine = torch.full((length,), 2.0), torch.full((length,), 2.0)
        assert torch.equal(compiled(mine, mine.t()), program(x, x.t()))
        assert torch.equal(mine, x)
