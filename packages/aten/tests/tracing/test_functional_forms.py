"""A writing operator's functional twin gives the same, and leaves its arguments alone."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode as new_fake_mode

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.tracing.functional_forms import functional_form, run_functionally, writing_operator


@pytest.fixture
def library():
    with torch.library._scoped_library("aten_forms", "FRAGMENT") as made:
        made.define("scale(Tensor(a!) x, float k=2.0) -> ()")
        made.define("both(Tensor(a!) x, Tensor y, *, Tensor(b!) out, int[]? dims=None) -> (Tensor, Tensor)")
        made.define("many(Tensor(a!)[] xs) -> ()")
        made.define("same(Tensor(a!) x) -> Tensor(a!)")
        made.define("pure(Tensor x) -> Tensor")

        def scale(x, k=2.0):
            x.mul_(k)

        def both(x, y, *, out, dims=None):
            x.add_(y)
            out.copy_(y)
            return x * 2, y * 3

        made.impl("scale", scale, "CompositeExplicitAutograd")
        made.impl("both", both, "CompositeExplicitAutograd")
        yield torch.ops.aten_forms


def test_which_calls_write(library):
    assert writing_operator(library.scale) is library.scale.default
    assert writing_operator(library.scale.default) is library.scale.default
    for target in (library.pure, torch.ops.aten.add_.Tensor, torch.add, "add_"):
        assert writing_operator(target) is None

    @torch.library.custom_op("aten_forms_too::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    assert writing_operator(bump) is torch.ops.aten_forms_too.bump.default


def test_the_twin_writes_to_copies(library):
    x, y, out = torch.ones(2), torch.full((2,), 3.0), torch.zeros(2)
    found = functional_form(library.both.default)(x, y, out=out)
    assert [value.tolist() for value in found] == [[8.0, 8.0], [9.0, 9.0], [4.0, 4.0], [3.0, 3.0]]
    assert x.tolist() == [1, 1] and out.tolist() == [0, 0]
    assert not functional_form(library.both.default)._schema.is_mutable
    assert functional_form(library.both.default) is functional_form(library.both.default)


def test_running_functionally_writes_back(library):
    x, y, out = torch.ones(2), torch.full((2,), 3.0), torch.zeros(2)
    results = run_functionally(library.both.default, (x, y), {"out": out})
    assert [value.tolist() for value in (*results, x, out)] == [[8.0, 8.0], [9.0, 9.0], [4.0, 4.0], [3.0, 3.0]]
    assert run_functionally(library.scale.default, (x[0],), {"k": 0.5}) is None
    assert x.tolist() == [2.0, 4.0]


def test_fake_tensors_take_the_twin(library):
    mode = new_fake_mode()
    x = mode.from_tensor(torch.ones(2, 3).t())
    with mode:
        assert functional_form(library.scale.default)(x).stride() == x.stride()


@pytest.mark.parametrize("name", ["many", "same"])
def test_what_has_no_twin_says_so(library, name):
    with pytest.raises(TraceUnsupported, match="custom-mutation"):
        functional_form(getattr(library, name).default)


@pytest.mark.parametrize("others", [(slice(0, 2), slice(2, 4)), (slice(2, 4), slice(1, 3)), (slice(1, 3), slice(2, 4))])
def test_memory_that_another_argument_shows_is_not_written(library, others):
    memory = torch.arange(4.0)
    y, out = (memory[other] for other in others)
    with pytest.raises(TraceUnsupported, match="another argument"):
        run_functionally(library.both.default, (memory[:2], y), {"out": out})
    assert memory.tolist() == [0, 1, 2, 3]


def test_arguments_beside_each_other_in_one_storage_are_written(library):
    memory = torch.arange(6.0)
    run_functionally(library.both.default, (memory[:2], memory[2:4]), {"out": memory[4:]})
    assert memory.tolist() == [2, 4, 2, 3, 2, 3]
