"""Backward passes captured and compiled, against the autograd engine."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import framesmith
import framesmith_autograd_compiler
from framesmith_autograd_compiler.recorder import Recorder


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framesmith.reset()  # programs stay for equal settings
    yield
    framesmith.reset()


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2)), torch.randn(3, 4)


def conv() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    return model, torch.randn(2, 1, 8, 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [mlp, conv])
@pytest.mark.parametrize("compiled_forward", [False, True], ids=["eager forward", "compiled forward"])
def test_gradients_equal_the_engines(
    make: Callable[[], tuple[nn.Module, torch.Tensor]], compiled_forward: bool
) -> None:
    torch.manual_seed(0)
    expected, x = make()
    actual = copy.deepcopy(expected)
    forward = framesmith.compile(actual) if compiled_forward else actual
    for _ in range(3):
        expected(x).square().mean().backward()
        with framesmith.compile_backward(strict=True) as captured:
            forward(x).square().mean().backward()
        assert captured.runs >= 1 and not captured.fallbacks
    for (name, p), (_, q) in zip(actual.named_parameters(), expected.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
def test_one_program_for_dynamic_shapes(backend: str) -> None:
    torch.manual_seed(0)
    expected, _ = mlp()
    actual = copy.deepcopy(expected)
    with framesmith.compile_backward(strict=True, backend=backend) as captured:
        for size in (3, 7, 3, 7, 5, 12, 2):
            x = torch.randn(size, 4)
            found = []
            for model in (expected, actual):
                model.zero_grad()
                with contextlib.nullcontext() if model is actual else framesmith_autograd_compiler.disabled():
                    model(x).square().mean().backward()
                found.append([parameter.grad for parameter in model.parameters()])
            for one, two in zip(*found, strict=True):
                torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    assert captured.runs == 7 and not captured.fallbacks
    assert [len(program.modules) for program in captured.programs] == [1, 2]
    assert [program.reasons for program in captured.programs] == [[], []]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
@pytest.mark.parametrize("compiled_forward", [False, True], ids=["eager forward", "compiled forward"])
def test_slices_of_the_data_are_compiled_once(backend: str, compiled_forward: bool) -> None:
    torch.manual_seed(0)
    expected, _ = mlp()
    actual = copy.deepcopy(expected)
    forward = framesmith.compile(actual) if compiled_forward else actual
    data = torch.randn(60, 4)
    with framesmith.compile_backward(strict=True, backend=backend) as captured:
        for at in range(12):
            x = data[5 * at : 5 * at + 5] if at % 3 else data.view(-1)[at : at + 20].view(5, 4)
            for model in (expected, forward):
                model.zero_grad()
                with framesmith_autograd_compiler.disabled() if model is expected else contextlib.nullcontext():
                    model(x).square().mean().backward()
            for one, two in zip(actual.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)
    assert [len(program.modules) for program in captured.programs] == [1]
    assert captured.programs[0].reasons == [] and not captured.fallbacks


def changed_after(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y * 2
    y.mul_(2)  # eager mode refuses the derivative of exp
    return z


#: Programs whose compiled graphs keep nothing, something only to watch it, or refuse their derivative.
KEEPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing": lambda x: x * 3,
    "nothing of one of two": lambda x: x * 3 + x.detach().sin() * x,
    "a place": lambda x: x.view(-1) + 1,
    "what is computed": lambda x: x.exp() * 2,
    "what was changed": changed_after,
}


@pytest.mark.parametrize("name", KEEPING)
def test_what_compiled_graphs_keep(name: str) -> None:
    run = framesmith.compile(KEEPING[name])
    for size in (1, 5):
        found: list[Any] = []
        for function, backward in ((KEEPING[name], contextlib.nullcontext), (run, framesmith.compile_backward)):
            x = torch.linspace(0.1, 1, size, requires_grad=True)
            total = function(x * 1).sum()
            try:
                with backward():
                    total.backward()
                assert x.grad is not None
                found.append(x.grad.tolist())
            except RuntimeError as error:
                found.append(str(error)[:60])
        assert found[0] == pytest.approx(found[1]) if isinstance(found[0], list) else found[0] == found[1]


def test_attention_of_changing_sizes_beside_its_input() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    inputs = [torch.randn(length, batch, 4) for batch, length in ((2, 4), (3, 5), (4, 7), (6, 8))]

    def gradients() -> list[Any]:
        leaves = [one.clone().requires_grad_() for one in inputs]
        for leaf in leaves:
            x = leaf.transpose(0, 1)
            (x + attention(x, x, x, need_weights=False)[0]).pow(2).sum().backward()
        return [leaf.grad for leaf in leaves]

    with warnings.catch_warnings(record=True) as reported, framesmith.compile_backward():
        warnings.simplefilter("always")
        found = gradients()
    assert not [one.message for one in reported if issubclass(one.category, framesmith.FramesmithWarning)]
    torch.testing.assert_close(found, gradients())


class AtAPlace(torch.autograd.Function):
    """Its derivative reads the memory of a saved tensor at a place that is not where the tensor begins."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def evaluate_backward(saved: list[torch.Tensor], grads: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        return saved[0].as_strided(saved[0].shape, saved[0].stride(), 4), None

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return AtAPlace.evaluate_backward(list(ctx.saved_tensors), [grad])


def test_memory_read_at_a_place() -> None:
    data, w = torch.randn(30), torch.randn(5, requires_grad=True)
    with framesmith.compile_backward(strict=True) as captured:
        for begin in (0, 7, 3, 9, 7):
            found = []
            for compiled in (False, True):
                w.grad = None
                with contextlib.nullcontext() if compiled else framesmith_autograd_compiler.disabled():
                    AtAPlace.apply(w, data[begin : begin + 5]).exp().sum().backward()
                found.append(w.grad)
            torch.testing.assert_close(found[1], found[0])
    assert len(captured.programs[0].modules) == 4  # one for each place


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def test_a_view_changed_by_a_function_of_the_user() -> None:
    w = torch.randn(8, 3, requires_grad=True)
    with framesmith.compile_backward(strict=True) as captured:
        for count, begin in ((6, 0), (6, 1), (5, 2), (7, 3), (8, 1)):
            found = []
            for compiled in (False, True):
                w.grad = None
                with contextlib.nullcontext() if compiled else framesmith_autograd_compiler.disabled():
                    y = w[:count].square()
                    Doubled.apply(y[begin : begin + 2])
                    (y * torch.arange(3.0 * count).view(count, 3)).sum().backward()
                found.append(w.grad)
            torch.testing.assert_close(found[1], found[0])
    assert not captured.fallbacks and not any(program.reasons for program in captured.programs)


def test_hooks_run_in_order_and_once() -> None:
    events: list[str] = []
    x = torch.randn(3, requires_grad=True)

    def hook(grad: torch.Tensor) -> torch.Tensor:
        events.append("tensor")
        return grad * 2

    x.register_post_accumulate_grad_hook(lambda t: events.append("accumulated"))
    for _ in range(2):
        x.grad = None
        y = x.sin()
        y.register_hook(hook)
        with framesmith.compile_backward(strict=True):
            y.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    assert events == ["tensor", "accumulated"] * 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_failure_of_the_compiler(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("planted")

    x = torch.randn(3, requires_grad=True)
    y = x.sin().sum()
    monkeypatch.setattr("framesmith_aot.compile_graph", fail)
    with framesmith.compile_backward(strict=strict):
        if strict:
            with pytest.raises(framesmith.FramesmithError, match="planted"):
                y.backward(retain_graph=True)
            assert x.grad is None
        else:
            with pytest.warns(framesmith.FramesmithWarning, match="planted"):
                y.backward(retain_graph=True)
            assert torch.equal(x.grad, x.detach().cos())
    x.grad = None
    y.backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_a_recorder_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, *args: object) -> None:
        raise KeyError("in the recorder")

    monkeypatch.setattr(Recorder, "end_capture", fails)
    w = torch.ones(3, requires_grad=True)
    with framesmith.compile_backward(strict=True), pytest.raises(framesmith.FramesmithError, match="in the recorder"):
        (w * w).sum().backward()
    assert w.grad is None
    with framesmith.compile_backward(), pytest.warns(framesmith.FramesmithWarning, match="a backward pass"):
        (w * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0] * 3


def test_a_context_entered_at_each_step_compiles_once() -> None:
    torch.manual_seed(0)
    expected, x = mlp()
    actual = copy.deepcopy(expected)
    seen = []
    for _ in range(4):
        for model in (expected, actual):
            model.zero_grad(set_to_none=False)
        expected(x).square().mean().backward()
        with framesmith.compile_backward(strict=True) as captured:
            actual(x).square().mean().backward()
        seen.append(captured)
    for p, q in zip(actual.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert [one.runs for one in seen] == [1] * 4
    assert seen[1].programs == seen[2].programs == seen[3].programs
    assert [len(program.modules) for program in seen[3].programs] == [1]
    framesmith.reset()
    with framesmith.compile_backward(strict=True) as captured:
        actual(x).square().mean().backward()
    assert captured.programs[0] is not seen[3].programs[0]


def test_other_settings_have_other_programs() -> None:
    w = torch.nn.Parameter(torch.ones(3))
    found = []
    for backend in ("auto", "aot_eager", "auto"):
        w.grad = None
        with framesmith.compile_backward(strict=True, backend=backend) as captured:
            (w * w).sum().backward()
        found.append(captured.programs[0])
    assert found[0] is found[2] is not found[1]


@pytest.mark.parametrize("function", ["sin", "softmax", "linear"])
@pytest.mark.parametrize("runs_before", [1, 2])
def test_around_a_compiled_function_that_has_run_before(function: str, runs_before: int) -> None:
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sin": lambda x: x.sin() * 2,
        "softmax": lambda x: x.softmax(-1).t().exp(),
        "linear": lambda x: x @ torch.ones(4, 2) + x.t()[:2].sum(),
    }
    f = functions[function]
    compiled = framesmith.compile(f)
    x = torch.linspace(-2, 2, 16).reshape(4, 4).requires_grad_()
    (expected,) = torch.autograd.grad(f(x).square().mean(), [x])
    for _ in range(runs_before):
        x.grad = None
        compiled(x).square().mean().backward()
    for _ in range(2):
        x.grad = None
        with framesmith.compile_backward(strict=True) as captured:
            compiled(x).square().mean().backward()
        assert x.grad is not None and captured.runs == 1 and not captured.fallbacks
        torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-5)


def test_passes_of_the_compilers_own_are_not_captured() -> None:
    """A check is probed when it is first made native, and `verify` differentiates what it compares."""
    torch.manual_seed(0)
    model, x = mlp()
    compiled = framesmith.compile(model, verify=2, strict=True)
    with framesmith.compile_backward(strict=True) as captured:
        for _ in range(2):
            compiled(x).square().mean().backward()
    assert captured.runs == 2 and not captured.fallbacks, captured


def test_a_failure_names_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr("framesmith_aot.compile_graph", fail)
    w = torch.ones(3, requires_grad=True)
    with framesmith.compile_backward(), pytest.warns(framesmith.FramesmithWarning, match=r"compiling \[!\d+\]"):
        (w * w).sum().backward()


def test_saved_tensors_are_freed_while_a_compiled_segment_runs() -> None:
    """A custom operator in each derivative counts how many of the saved tensors are alive."""
    refs: list[weakref.ref[torch.Tensor]] = []
    live: list[int] = []

    @torch.library.custom_op("framesmith_tests::counts_live", mutates_args=())
    def counts_live(grad: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        live.append(sum(ref() is not None for ref in refs))
        return grad * factor

    counts_live.register_fake(lambda grad, factor: torch.empty_like(grad))

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(factor)
            return x * factor

        @staticmethod
        def evaluate_backward(saved: Any, grads: Any) -> Any:
            return counts_live(grads[0], saved[0]), None

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return Counting.evaluate_backward(ctx.saved_tensors, [grad])

    for captured in (False, True, True):
        refs.clear()
        live.clear()
        x = torch.randn(4, requires_grad=True)
        for _ in range(8):
            factor = torch.randn(4)
            x = Counting.apply(x, factor)
            refs.append(weakref.ref(factor))
        del factor
        with framesmith.compile_backward(strict=True) if captured else contextlib.nullcontext() as seen:
            x.sum().backward()
        assert live == [*range(8, 0, -1)]
        assert seen is None or [len(program.modules) for program in seen.programs] == [1]
