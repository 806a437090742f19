"""A writing operator's functional twin gives the same, and leaves its arguments alone."""

from __future__ import annotations

import pytest
import torch

from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.tracing.functional_forms import functional_form, run_functionally, writing_operator


@pytest.fixture
def library():
    with torch.library._scoped_library("aten_forms", "FRAGMENT") as made:
        made.define("scale(Tensor(a!) x, float k=2.0) -> ()")
        made.define("both(Tensor(a!) x, Tensor y, *, Tensor(b!) out, int[]? dims=None) -> (Tensor, Tensor)")
        made.define("many(Tensor(a!)[] xs) -> ()")
        made.define("maybe(Tensor(a!)?[] xs, Tensor y, Tensor(b!)? z=None) -> Tensor")
        made.define("same(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor, Tensor(a!))")
        made.define("shown(Tensor(a!) x, Tensor(b) y) -> Tensor(b)")
        made.define("one_of(Tensor(a!)[] xs) -> Tensor(a!)")
        made.define("pure(Tensor x) -> Tensor")

        def scale(x, k=2.0):
            x.mul_(k)

        def both(x, y, *, out, dims=None):
            x.add_(y)
            out.copy_(y)
            return x * 2, y * 3

        def maybe(xs, y, z=None):
            for tensor in (*xs, z):
                if tensor is not None:
                    tensor.add_(y)
            return y * 2

        def same(x, y):
            x.add_(1)
            y.add_(2)
            return y, x + y, x

        def many(xs):
            for x in xs:
                x.zero_()

        made.impl("many", many, "CompositeExplicitAutograd")
        made.impl("maybe", maybe, "CompositeExplicitAutograd")
        made.impl("same", same, "CompositeExplicitAutograd")
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
    found = functional_form(library.both.default, (1, 1))(x, y, out=out)
    assert [value.tolist() for value in found] == [[8.0, 8.0], [9.0, 9.0], [4.0, 4.0], [3.0, 3.0]]
    assert x.tolist() == [1, 1] and out.tolist() == [0, 0]
    assert not functional_form(library.both.default, (1, 1))._schema.is_mutable
    assert functional_form(library.both.default, (1, 1)) is functional_form(library.both.default, (1, 1))


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
        assert functional_form(library.scale.default, (1,))(x).stride() == x.stride()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_lists_are_written_tensor_by_tensor(library, count):
    xs = [torch.ones(2) for _ in range(count)]
    assert run_functionally(library.many.default, (xs,), {}) is None
    assert [x.tolist() for x in xs] == [[0, 0]] * count
    twin = functional_form(library.many.default, (count,))
    assert len(twin._schema.returns) == count and not twin._schema.is_mutable


def test_tensors_that_may_be_none(library):
    maybe, y, (x, z) = library.maybe.default, torch.ones(2), torch.zeros(2, 2)
    for rest in ((), (None,)):
        assert run_functionally(maybe, ([None, None], y, *rest), {}).tolist() == [2, 2]
    assert run_functionally(maybe, ([None, x], y), {}).tolist() == [2, 2]
    assert run_functionally(maybe, ([x, None, None], y, z), {}).tolist() == [2, 2]
    assert x.tolist() == [2, 2] and z.tolist() == [1, 1]


def test_a_result_that_is_a_written_argument(library):
    x, y = torch.zeros(2), torch.ones(2)
    first, second, third = run_functionally(library.same.default, (x,), {"y": y})
    assert first is y and third is x
    assert [value.tolist() for value in (x, y, second)] == [[1, 1], [3, 3], [4, 4]]


@pytest.mark.parametrize(("name", "args"), [("shown", (torch.ones(2), torch.ones(2))), ("one_of", ([torch.ones(2)],))])
def test_a_result_that_shows_other_memory_is_refused(library, name, args):
    with pytest.raises(TraceUnsupported, match="result shows"):
        run_functionally(getattr(library, name).default, args, {})


def test_tensors_of_one_list_that_overlap_are_not_written(library):
    x = torch.ones(3)
    for xs in ([x, x], [x[:2], x[1:]]):
        with pytest.raises(TraceUnsupported, match="another argument"):
            run_functionally(library.many.default, (xs,), {})
    run_functionally(library.many.default, ([x[:2], x[2:]],), {})
    assert x.tolist() == [0, 0, 0]


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
