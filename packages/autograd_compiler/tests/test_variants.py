"""Storage offsets, strides, dtypes and absences that differ from pass to pass: what is compiled again."""

from __future__ import annotations

import threading

import pytest
import torch
from harness import Doubled, identity, same_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._ops import OpOverload

from framesmith_aten.contract import Runner
from framesmith_autograd_compiler import capture, disabled, gate
from framesmith_autograd_compiler.engine import installed
from framesmith_autograd_compiler.segments import runner, variants


def of_batches(*batches, accumulate=False):
    """`(parameters, step)` for the harness: one batch after another through one weight."""

    def make():
        weight = torch.nn.Parameter(torch.randn(3, 2))
        left = list(batches)

        def step():
            if not accumulate:
                weight.grad = None
            x = left.pop(0)
            ((x @ weight.to(x.dtype)).tanh() * x.mean()).square().sum().backward()

        return [weight], step

    return make


DATA = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
WIDE = torch.randn(4, 60, generator=torch.Generator().manual_seed(1))

SLICES = {
    "rows": [DATA[4 * i : 4 * i + 4] for i in range(20)],
    "rows, the first one not at the beginning": [DATA[4 * i : 4 * i + 4] for i in range(20, 0, -1)],
    "rows at odd offsets": [DATA.view(-1)[5 * i : 5 * i + 12].view(4, 3) for i in range(20)],
    "columns": [WIDE[:, i : i + 3] for i in range(20)],
    "every other column": [WIDE[:, i : i + 6 : 2] for i in range(20)],
    "slices, and memory of their own": [DATA[i : i + 4].clone() if i % 2 else DATA[i : i + 4] for i in range(20)],
}


@pytest.mark.parametrize("accumulate", [False, True], ids=["fresh", "accumulated"])
@pytest.mark.parametrize("name", SLICES)
def test_where_a_batch_begins_does_not_matter(name, accumulate):
    batches = SLICES[name]
    seen = same_gradients(of_batches(*batches, accumulate=accumulate), steps=len(batches))
    assert all(len(one.modules) == 1 and one.reasons == [] for one in seen.programs)


def test_parts_of_what_requires_gradients():
    """The engine gives storage offsets as numbers, which become symbols."""
    parts = [DATA.clone().requires_grad_()[3 * i : 3 * i + 4] for i in range(20)]
    seen = same_gradients(of_batches(*parts), steps=len(parts))
    assert [len(one.modules) for one in seen.programs] == [1, 2]
    assert [one.reasons for one in seen.programs] == [[], []]


def test_slices_of_many_sizes():
    rows = [3, 5, 4, 4, 7, 3, 9, 5, 8]
    batches = [DATA[11 * at : 11 * at + count] for at, count in enumerate(rows)]
    seen = same_gradients(of_batches(*batches), steps=len(batches))
    assert [len(one.modules) for one in seen.programs] == [1, 2]
    assert [one.reasons for one in seen.programs] == [[], []]


def test_other_strides_alone():
    """They are compiled for by themselves, and sizes can be symbols all the same."""
    strided = [torch.randn(4, 3 + extra)[:, :3] for extra in (0, 2, 5, 2, 0, 5)]
    seen = same_gradients(of_batches(*strided), steps=6)
    assert [len(one.modules) for one in seen.programs] == [3] and seen.programs[0].reasons == []
    turned = [torch.randn(4, 3), torch.randn(3, 4).t(), torch.randn(4, 3), *(torch.randn(n, 3) for n in (5, 6, 8))]
    seen = same_gradients(of_batches(*turned), steps=6)
    assert [len(one.modules) for one in seen.programs] == [2, 2]
    assert [one.reasons for one in seen.programs] == [[], []]


BATCHES = st.tuples(
    st.sampled_from([1, 2, 3, 5]),
    st.integers(0, 9),
    st.sampled_from(["rows", "columns", "turned", "every other", "own"]),
    st.sampled_from([torch.float32, torch.float64]),
)


def batch(rows, start, kind, dtype):
    whole = DATA.to(dtype)
    return {
        "rows": lambda: whole[start : start + rows],
        "columns": lambda: whole.view(20, 30)[:rows, start : start + 3],
        "turned": lambda: whole.view(30, 20)[:3, start : start + rows].t(),
        "every other": lambda: whole[start : start + 2 * rows : 2],
        "own": lambda: whole[start : start + rows].clone(),
    }[kind]()


@given(st.lists(BATCHES, min_size=2, max_size=6), st.booleans())
@settings(max_examples=25, deadline=None)
def test_whatever_changes(kinds, accumulate):
    same_gradients(of_batches(*(batch(*kind) for kind in kinds), accumulate=accumulate), steps=len(kinds))


class AsksOffset(torch.autograd.Function):
    """Its derivative depends on where in its memory a saved tensor begins."""

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx, grad):
        return AsksOffset.evaluate_backward(ctx.saved_tensors, [grad])

    @staticmethod
    def evaluate_backward(saved, grads):
        return saved[0] * grads[0] * (1 + saved[0].storage_offset()), None


class ReadsMemory(AsksOffset):
    """Its derivative reads the memory of a saved tensor at a place of its own choice."""

    @staticmethod
    def backward(ctx, grad):
        return ReadsMemory.evaluate_backward(ctx.saved_tensors, [grad])

    @staticmethod
    def evaluate_backward(saved, grads):
        x = saved[0]
        return x * grads[0] + x.as_strided(x.shape, x.stride(), 4), None


@pytest.mark.parametrize("function", [AsksOffset, ReadsMemory])
@pytest.mark.parametrize("counts", [[5, 5, 5, 5, 5, 5], [5, 4, 3, 6, 4, 5]], ids=["one size", "sizes"])
def test_code_that_depends_on_storage_offsets(function, counts):
    data = torch.randn(60)

    def make():
        weight = torch.nn.Parameter(torch.randn(6))
        left = [*zip(counts, (0, 7, 7, 9, 0, 8))]

        def step():
            weight.grad = None
            count, begin = left.pop(0)
            function.apply(weight[:count], data[begin : begin + count]).exp().sum().backward()

        return [weight], step

    same_gradients(make, steps=6)


def test_two_inputs_that_are_once_one_tensor():
    class Gives(torch.autograd.Function):
        @staticmethod
        def forward(ctx, one, two, factor):
            ctx.factor = factor
            return one + two

        @staticmethod
        def backward(ctx, grad):
            grad = grad.clone(memory_format=torch.contiguous_format)
            return grad, grad if ctx.factor == 1 else grad * ctx.factor, None

    def make():
        one, two = torch.nn.Parameter(torch.randn(4)), torch.nn.Parameter(torch.randn(4))
        factors = iter([1, 1, 5, 1, 7])
        return [one, two], lambda: Gives.apply(one.sin(), two.sin(), next(factors)).square().sum().backward()

    same_gradients(make, steps=5)


@pytest.mark.parametrize("changes", [[(6, 0), (6, 1), (6, 3), (6, 1)], [(5, 1), (6, 2), (7, 0), (5, 3), (8, 4)]])
def test_a_view_changed_by_a_function_of_the_user(changes):
    def make():
        weight = torch.nn.Parameter(torch.randn(8, 3))
        left = list(changes)

        def step():
            count, begin = left.pop(0)
            y = weight[:count].square()
            Doubled.apply(y[begin : begin + 2])
            (y * torch.arange(3.0 * count).view(count, 3)).sum().backward()

        return [weight], step

    seen = same_gradients(make, steps=len(changes))
    nodes = [node for one in seen.programs for module in one.modules for node in module.graph.nodes]
    changes = [node for node in nodes if isinstance(node.target, OpOverload) and node.target._schema.is_mutable]
    assert all(node.args[0].op != "placeholder" for node in changes)  # an input's memory is another input's


def test_numbers_that_are_equal_and_are_not_the_same():
    found = variants.Variants()
    made = variants.Compiled(Runner(len), torch.fx.GraphModule({}, torch.fx.Graph()), (), (), False)
    for number in (0.0, float("nan")):
        found.add_static([number], made)
        assert found.find([number]) == (made, ())
    with pytest.raises(KeyError):
        found.find([-0.0])


def test_sizes_that_are_never_symbols_are_compiled_for_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(variants, "MOST_STATIC", 3)
    counts, asked = [2, 3, 4, 5, 6, 7, 8, 3, 4, 9], []

    def static_only(gm):
        asked.append(gm)
        if any(isinstance(node.meta.get("val"), torch.SymInt) for node in gm.graph.nodes):
            raise NotImplementedError("a symbol")
        return gm

    weight = torch.nn.Parameter(torch.randn(3, 2))
    with capture(static_only) as seen:
        for count in counts:
            weight.grad, x = None, torch.randn(count, 3)
            (x @ weight).square().mean().backward()
            with disabled():
                (expected,) = torch.autograd.grad((x @ weight).square().mean(), [weight])
            torch.testing.assert_close(weight.grad, expected)
    assert [len(one.modules) for one in seen.programs] == [1, 3]
    assert len(asked) == 5 and len(seen.programs[1].reasons) == 2
    assert seen.programs[1].reasons[1] == "segment 0 runs call by call: it is compiled for 3 sizes already"


@pytest.mark.filterwarnings("ignore:a part of the backward pass is not compiled")
def test_what_fails_for_some_sizes_is_not_tried_for_ever():
    asked = []

    def fails(gm):
        asked.append(gm)
        raise ValueError("no such operator")

    weight = torch.nn.Parameter(torch.randn(3, 2))
    with capture(fails) as seen:
        for count in range(2, 22):
            weight.grad, x = None, torch.randn(count, 3)
            (x @ weight).sum().backward()
            torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(3, 2))
    assert len(asked) == 1 + 1 + variants.MOST_FAILED  # the first program's, one with symbols, and as often as is tried
    assert [len(one.modules) for one in seen.programs] == [0, 0]
    assert len(seen.programs[1].reasons) == 1 + variants.MOST_FAILED + 1


def test_forms_that_change_are_compiled_for_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(runner, "MOST_SIGNATURES", 2)

    class Chooses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, one, two, which):
            ctx.which = which
            return one * two

        @staticmethod
        def backward(ctx, grad):
            return grad if ctx.which & 1 else None, grad if ctx.which & 2 else None, None

    def make():
        weights = [torch.nn.Parameter(torch.randn(4)) for _ in range(2)]
        which = iter([1, 2, 3, 0, 1, 3])

        def step():
            for weight in weights:
                weight.grad = None
            Chooses.apply(weights[0].sin(), weights[1].cos(), next(which)).exp().sum().backward()

        return weights, step

    seen = same_gradients(make, steps=6)
    assert any("it is compiled for 2 signatures already" in reason for reason in seen.programs[0].reasons)
    assert len(seen.programs[0].modules) == 3  # before the function of the user, and two forms behind it


def test_threads_that_share_a_capture(monkeypatch):
    """The gate lets one captured pass run at a time: what has been compiled is compiled once, and is right."""
    monkeypatch.setattr(gate, "PATIENCE", 100.0)
    results, errors = {}, []

    def work(number, seen):
        installed().captures.append(seen)
        try:
            weight = torch.nn.Parameter(torch.full((3, 2), 0.1 * number))
            for at in range(30):
                x = DATA[number + 3 * at : number + 3 * at + 2 + (at + number) % 5]
                (x @ weight).tanh().sum().backward()
                assert len([module for one in list(seen.programs) for module in one.modules]) < 20
            results[number] = weight.grad
        except BaseException as error:
            errors.append(error)
        finally:
            installed().captures.clear()

    with capture(identity) as seen:
        threads = [threading.Thread(target=work, args=(number, seen)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors and seen.runs == 120 and seen.fallbacks == []
    assert all(one.reasons == [] for one in seen.programs)
    for number, found in results.items():
        weight = torch.nn.Parameter(torch.full((3, 2), 0.1 * number))
        for at in range(30):
            x = DATA[number + 3 * at : number + 3 * at + 2 + (at + number) % 5]
            (x @ weight).tanh().sum().backward()
        torch.testing.assert_close(found, weight.grad)


@pytest.mark.parametrize("strict", [False, True])
def test_a_mistake_of_the_compilers_own_is_reported(strict, monkeypatch):
    """A size that cannot be a symbol is a reason; any other error is a failure."""

    class Reported(Exception):
        pass

    reports = []

    def report(where, error):
        reports.append(error)
        if strict:
            raise Reported(where) from error

    def mistaken(traced, compiled, values):
        raise AttributeError("planted")

    monkeypatch.setattr(runner, "dynamic_variant", mistaken)
    weight = torch.nn.Parameter(torch.randn(3, 2))
    with capture(identity, on_failure=report) as seen:
        for count in (2, 3):
            weight.grad = None
            (torch.randn(count, 3) @ weight).sum().backward()
        weight.grad, x = None, torch.randn(4, 3)
        loss = (x @ weight).sum()
        if strict:
            with pytest.raises(Reported, match="with dynamic shapes"):
                loss.backward()
            return
        loss.backward()
    torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(3, 2))
    assert [str(error) for error in reports] == ["planted"]
    assert seen.programs[1].reasons == ["compiled for each size: AttributeError: planted"]
