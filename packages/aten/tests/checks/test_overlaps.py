"""Writes to views of symbolic sizes, against the offsets of their elements; and views of torch's own database."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from op_database import run_samples
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from framesmith_aten.checks.overlaps import OVERLAPPING_MUTATION, READ_LATE, Overlaps
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.operators import is_view, shows_part
from framesmith_aten.recording import OperatorLog
from framesmith_aten.table import TABLE


def offsets(tensor):
    """The bytes of its storage at which the elements begin."""
    size, stride = tensor.shape, tensor.stride()
    at = (sum(map(math.prod, zip(index, stride))) for index in itertools.product(*map(range, size)))
    return [tensor.element_size() * (tensor.storage_offset() + one) for one in at]


def covered(tensor):
    """All bytes that it shows."""
    return {offset + byte for offset in offsets(tensor) for byte in range(tensor.element_size())}


def is_disjoint(tensor):
    found = offsets(tensor)
    return len(set(found)) == len(found)


def test_views_show_parts_unless_the_table_says_otherwise():
    wrong, kinds = set(), set()

    def seen(op, args, kwargs, run):
        out = run()
        if is_view(op) and isinstance(args[0], torch.Tensor) and args[0].numel() < 2000:
            whole = args[0]
            views = out if isinstance(out, (list, tuple)) else [out]
            if whole.layout is torch.strided and is_disjoint(whole):
                kinds.add(op)
                part = all(is_disjoint(view) and covered(view) <= covered(whole) for view in views)
                if shows_part(op) and not part:
                    wrong.add(op)
        return out

    run_samples(seen, 3)
    assert not wrong
    assert len(kinds) > 20


AT = torch.tensor([1, 2, 0, 3, 4])

#: In-place forms of all operators that write by place, with an operand that is what they write to.
SCATTERS = {
    "index_copy_": lambda y: [(0, y, y + 1), (0, AT, y)],
    "index_fill_": lambda y: [(0, y, 1), (0, y, y[0])],
    "index_add_": lambda y: [(0, y, y + 1), (0, AT, y)],
    "index_reduce_": lambda y: [(0, y, y + 1, "amax"), (0, AT, y, "amax")],
    "index_put_": lambda y: [((y,), y + 1), ((AT,), y), ((AT,), y, True)],
    "_index_put_impl_": lambda y: [((y,), y + 1), ((AT,), y)],
    "put_": lambda y: [(y, y + 1), (AT, y)],
    "scatter_": lambda y: [(0, y, y + 1), (0, AT, y), (0, y, 1)],
    "scatter_add_": lambda y: [(0, y, y + 1), (0, AT, y)],
    "scatter_reduce_": lambda y: [(0, y, y + 1, "amax"), (0, AT, y, "amax")],
}


def test_all_operators_that_scatter_are_tried():
    assert {name.removesuffix("_") for name in SCATTERS} == {
        name for name, row in TABLE.items() if row.scatter_operands
    }


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", SCATTERS)
def test_indices_and_values_are_not_written_to(name):
    operator = getattr(torch.ops.aten, name)
    for which in range(len(SCATTERS[name](torch.arange(5)))):
        for separate in (False, True):
            y = torch.arange(5)
            args = SCATTERS[name](y.clone() if separate else y)[which]
            with OperatorLog(), nullcontext() if separate else pytest.raises(TraceUnsupported) as refused:
                operator(y, *args)
            if not separate:
                assert refused.value.id == READ_LATE
                with pytest.raises(RuntimeError, match="single memory location"):
                    operator(y, *args)


class Symbols:
    """A tensor of symbolic sizes and strides, and what is done to it."""

    def __init__(self, real):
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        dims = [DimDynamic.DYNAMIC] * real.dim()
        self.fake = self.mode.from_tensor(real, symbolic_context=StatelessSymbolicContext(dims))
        self.parts = []
        self.overlaps = Overlaps(self.parts)
        self.overlaps.note_input(self.fake, real)

    def run(self, call):
        log = OperatorLog()
        with self.mode, log:
            out = call(self.fake)
        self.parts += log.effects.parts
        self.overlaps.note(out)
        return out

    def unbacked(self, most):
        """Return an unbacked number up to another."""
        number = self.env.create_unbacked_symint()
        torch._check(number >= 0)
        torch._check(number <= most)
        return number

    def refusal(self, tensor):
        try:
            self.overlaps.check(tensor, "add_")
        except TraceUnsupported as error:
            return error.id
        return None


LAYOUTS = {
    "contiguous": lambda: torch.zeros(5, 8, 6),
    "permuted": lambda: torch.zeros(6, 5, 8).permute(1, 2, 0),
    "with gaps": lambda: torch.zeros(5, 31, 6)[:, 3:11],
    "each other": lambda: torch.zeros(5, 8, 12)[..., ::2],
}


@st.composite
def steps(draw):
    """A view that shows each element at most once, of a tensor of some dimensions."""
    kind = draw(st.sampled_from(["slice", "select", "transpose", "narrow", "unsqueeze", "flip sides"]))
    at, other, step = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(1, 3))
    low, length = draw(st.integers(0, 2)), draw(st.integers(0, 3))

    def taken(t):
        if t.dim() < 2:
            return t[low : low + length]
        dim, beside = at % t.dim(), other % t.dim()
        if kind == "slice":
            return t[(slice(None),) * dim + (slice(low, None, step),)]
        if kind == "select":
            return t.select(dim, 0)
        if kind == "narrow":
            return t.narrow(dim, 0, 1)
        if kind == "transpose":
            return t.transpose(dim, beside)
        if kind == "unsqueeze":
            return t.unsqueeze(dim)
        return t[(slice(None),) * dim + (slice(None, -1),)]

    return taken


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.lists(steps(), min_size=1, max_size=3))
def test_parts_of_what_does_not_overlap_itself_are_written_to(layout, chain):
    def views(t):
        for step in chain:
            t = step(t)
        return t

    real = LAYOUTS[layout]()
    try:
        views(real)
    except (IndexError, RuntimeError):  # nothing is left for the next step
        assume(False)
    symbols = Symbols(real)
    assert symbols.refusal(symbols.run(views)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_unbacked_bound_of_a_part(layout):
    symbols = Symbols(LAYOUTS[layout]())
    number = symbols.unbacked(symbols.fake.shape[1])
    for part in (lambda t: t[:, :number], lambda t: t[:, number:, 1:], lambda t: t[:, :number:2].transpose(0, 2)):
        assert symbols.refusal(symbols.run(part)) is None


@pytest.mark.parametrize("layout", ["contiguous", "permuted"])
def test_no_guard_says_what_is_known(layout):
    symbols = Symbols(LAYOUTS[layout]())
    view = symbols.run(lambda t: t[:, 1 : t.shape[0] + 1, ::2])
    before = len(symbols.env.guards)
    assert symbols.refusal(view) is None
    assert len(symbols.env.guards) == before


REPEATING = {
    "expanded": lambda t: t[:, :1].expand(-1, 4, -1),
    "expanded by its primitive": lambda t: torch.ops.prims.broadcast_in_dim(
        t[:, :1], (t.shape[0], 4, t.shape[2]), (0, 1, 2)
    ),
    "a part of an expanded one": lambda t: t[:, :1].expand(-1, 4, -1)[:, :2],
    "unfolded": lambda t: t.unfold(1, 3, 1),
    "a row of an unfolded one": lambda t: t.unfold(1, 3, 1)[:, 1:],
    "by strides": lambda t: t.as_strided((t.shape[0], 3), (1, 1)),
}


@pytest.mark.parametrize("name", REPEATING)
def test_views_that_repeat_elements_are_not_written_to(name):
    symbols = Symbols(LAYOUTS["contiguous"]())
    assert symbols.refusal(symbols.run(REPEATING[name])) == OVERLAPPING_MUTATION


@pytest.mark.parametrize("name", REPEATING)
def test_nor_are_others_of_that_memory(name):
    symbols = Symbols(LAYOUTS["contiguous"]())
    symbols.run(REPEATING[name])
    assert symbols.refusal(symbols.run(lambda t: t[:, 1:3])) == OVERLAPPING_MUTATION


def test_a_view_of_a_tensor_that_is_restrided_later():
    symbols = Symbols(LAYOUTS["contiguous"]())
    view = symbols.run(lambda t: t[:, 1:])
    symbols.run(lambda t: view.as_strided_((t.shape[0], 3), (0, 1), 0))
    assert symbols.refusal(view) == OVERLAPPING_MUTATION
