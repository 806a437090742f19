"""Layout facts against the offsets of all elements."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from framesmith_aten import layouts


def offsets(tensor):
    """The storage positions of all elements, in their order."""
    ranges = [range(length) for length in tensor.shape]
    strides = tensor.stride()
    return [tensor.storage_offset() + sum(a * b for a, b in zip(at, strides)) for at in itertools.product(*ranges)]


@st.composite
def views(draw):
    rank = draw(st.integers(0, 3))
    size = [draw(st.integers(0, 3)) for _ in range(rank)]
    stride = [draw(st.sampled_from([0, 1, 2, 3, 6])) for _ in range(rank)]
    return torch.arange(64.0).as_strided(size, stride, draw(st.integers(0, 9)))


@given(views())
def test_dense(tensor):
    found = offsets(tensor)
    dense = len(set(found)) == len(found) and (not found or max(found) - min(found) + 1 == len(found))
    assert layouts.is_dense(tensor.shape, tensor.stride()) == dense


@given(views())
def test_span(tensor):
    found = offsets(tensor)
    first, end = layouts.span(tensor)
    assert (first, end) == ((4 * min(found), 4 * max(found) + 4) if found else (first, first))


@given(views())
def test_overlap_with_itself(tensor):
    found = offsets(tensor)
    if layouts.overlaps_itself(tensor):
        assert len(set(found)) < len(found)
    if any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape)) and found:
        assert layouts.overlaps_itself(tensor)


@given(views(), views())
def test_what_is_read_after_it_was_written(first, second):
    whole = torch.zeros(64)
    written, read = (whole.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (first, second))
    late = layouts.is_read_late(written, read)
    if not set(offsets(written)) & set(offsets(read)):
        assert not late
        return
    try:
        beside = read.expand(written.shape)
    except RuntimeError:
        assert late
        return
    assert late == any(
        other != offset and other in offsets(written) for other, offset in zip(offsets(beside), offsets(written))
    )


#: The written and the read part of a matrix, by a number from 0 up.
PAIRS = {
    "rows": lambda x, n: (x[:n], x[5 : 5 + n]),
    "rows before": lambda x, n: (x[5 : 5 + n], x[:n]),
    "columns": lambda x, n: (x[:, n:], x[:, : x.shape[1] - n]),
    "columns before": lambda x, n: (x[:, : x.shape[1] - n], x[:, n:]),
    "columns of other rows": lambda x, n: (x[2:, :n], x[:-2, n : n + n]),
    "of a width": lambda x, n: (x[:, n : n + 3], x[:, :3]),
    "a column in all": lambda x, n: (x[:, :n], x[:, 4:5]),
    "the same": lambda x, n: (x[:, :n], x[:, :n]),
    "the same at present": lambda x, n: (x[:, :n], x[:, : x.shape[0]]),
    "turned": lambda x, n: (x[:n, :n], x[:n, :n].t()),
    "every other": lambda x, n: (x.view(-1)[::2][:n], x.view(-1)[1::2][:n]),
    "a half of pairs": lambda x, n: (x.view(-1, 2)[n:, 0], x.view(-1, 2)[: x.numel() // 2 - n, 1]),
    "with none": lambda x, n: (x[:, n:n], x[:, :0]),
    "wider": lambda x, n: (x.view(-1)[:n], x.view(-1)[: n - n % 2].view(torch.complex64)),
}
SIZES = [(6, 8, 3), (8, 10, 2), (8, 10, 3), (8, 10, 4), (8, 10, 5), (8, 10, 6), (8, 10, 8)]


def asked_of_symbols(views, rows, columns, n):
    """Whether something is read late, and a function that says of other sizes whether the guards allow for them."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 3)
    numbers = mode.from_tensor(torch.empty(rows, columns, n), symbolic_context=context).shape
    symbols = [number.node.expr for number in numbers]
    with mode:
        written, read = views(torch.empty(numbers[:2]), numbers[2])
    late = layouts.is_read_late(written, read)
    guards = [guard.expr for guard in env.guards]
    return late, lambda *sizes: all(expr.subs(dict(zip(symbols, sizes, strict=True))) for expr in guards)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_read_late_of_symbols_is_guarded(name):
    views = PAIRS[name]
    for sizes in SIZES:
        late, allowed = asked_of_symbols(views, *sizes)
        assert late == layouts.is_read_late(*views(torch.empty(sizes[:2]), sizes[2]))
        assert allowed(*sizes)
        for others in SIZES if not late else ():
            assert not allowed(*others) or not layouts.is_read_late(*views(torch.empty(others[:2]), others[2]))


@pytest.mark.parametrize(
    "name", ["rows", "columns", "columns before", "columns of other rows", "of a width", "the same"]
)
def test_no_size_is_specialised_where_parts_are_disjoint(name):
    late, allowed = asked_of_symbols(PAIRS[name], 12, 20, 3 if name in ("rows", "columns of other rows") else 11)
    assert not late
    assert allowed(12, 22, 4 if name in ("rows", "columns of other rows") else 12)


def test_unbacked_parts_are_read_late_unless_known_not_to_be():
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        x, n = torch.empty(4, 20), env.create_unbacked_symint()
        torch._check(n >= 2)
        torch._check(n <= 8)
        assert layouts.is_read_late(x[:, 5 : 5 + n], x[:, :n])
        assert not layouts.is_read_late(x[:, 8 : 8 + n], x[:, :n])
        assert not layouts.is_read_late(x[:, :n], x[:, :n])
    assert not env.guards


@given(views())
def test_restride(tensor):
    strides = torch.empty(tensor.shape).stride()
    found = layouts.restride(tensor, strides)
    assert torch.equal(found, tensor)
    assert layouts.has_stride(found, strides)
    assert (found is tensor) == layouts.has_stride(tensor, strides)


def test_copies_share_memory_as_their_models_do():
    base = torch.arange(6.0)
    one, two, other = layouts.copies([base[:4], base[2:].view(2, 2).t(), torch.ones(1).expand(3)])
    one.add_(10)
    assert two.tolist() == [[12, 4], [13, 5]] and two.stride() == (1, 2)
    assert base.tolist() == [0, 1, 2, 3, 4, 5] and other.stride() == (0,)


def test_restride_of_sparse():
    dense = torch.eye(3)
    assert torch.equal(layouts.restride(dense.to_sparse(), (3, 1)), dense)


def test_storages():
    x = torch.zeros(4)
    assert layouts.share_storage(x, x[1:]) and not layouts.share_storage(x, x.clone())


def test_restride_copies_only_where_it_must() -> None:
    x = torch.randn(4, 1, 5)
    assert layouts.restride(x, (5, 17, 1)) is x
    moved = layouts.restride(x, (1, 4, 4))
    assert moved.stride() == (1, 4, 4)
    assert torch.equal(moved, x)


def test_the_default_device_says_nothing_of_layouts():
    whole = torch.zeros(64)
    with torch.device("meta"):
        assert layouts.is_read_late(whole[1:], whole[:-1])
        assert not layouts.is_read_late(whole[::2], whole[1::2])
