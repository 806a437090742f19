"""The pass that C runs once its program is compiled, and calls that it leaves to Python: as in eager mode."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, graph_of

from framesmith_guards.programs.native.probing import why_no_tensors

Tensors = tuple[torch.Tensor, ...]

in_c = pytest.mark.skipif(why_no_tensors() is not None, reason=str(why_no_tensors()))


def leaf(*shape: int) -> torch.Tensor:
    return torch.linspace(0.1, 1, torch.Size(shape).numel()).view(shape).clone().requires_grad_()


def two_results(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    y = (x * w).sin()
    return y, (y * w).exp()


def one_result(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return ((x * w).exp() * w,)


def warm(fn: Callable[..., Tensors], *shapes: tuple[int, ...]) -> Callable[..., Tensors]:
    """Return a compiled function after a backward pass from all its results."""
    inputs = [leaf(*shape) for shape in shapes]
    run = compiled(graph_of(fn), inputs)
    results = run(*inputs)
    torch.autograd.backward(results, [torch.ones_like(one) for one in results])
    return run


def frames_of(call: Callable[[], object]) -> list[str]:
    """Return the names of the files whose frames `call` runs."""
    seen: list[str] = []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@in_c
def test_no_python_runs_between_the_engine_and_the_program() -> None:
    run = warm(one_result, (3,), (3,))
    x, w = leaf(3), leaf(3)
    [y], tangent = run(x, w), torch.ones(3)
    run_backward: Any = torch.autograd.Variable._execution_engine.run_backward  # type: ignore[attr-defined]
    files = frames_of(lambda: run_backward((y,), (tangent,), False, False, (), True, True))
    assert [file for file in files if "framesmith_aot" in file or "torch/autograd" in file] == []
    assert torch.equal(x.grad, torch.autograd.grad(one_result(x, w)[0], x, tangent)[0])


def gradients(fn: Callable[..., Tensors], use: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    inputs = [leaf(*shape) for shape in shapes]
    return use(fn(*inputs), inputs)


def of_one(results: Tensors, inputs: Any) -> Any:
    return torch.autograd.grad(results[0].sum(), inputs)


def of_other(results: Tensors, inputs: Any) -> Any:
    return torch.autograd.grad(results[-1].sum(), inputs)


def twice_retained(results: Tensors, inputs: Any) -> Any:
    first = torch.autograd.grad([one.sum() for one in results], inputs, retain_graph=True)
    return *first, *torch.autograd.grad([one.sum() for one in results], inputs)


def of_second_order(results: Tensors, inputs: Any) -> Any:
    first = torch.autograd.grad(results[-1].sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum(one.pow(2).sum() for one in first), inputs)


def batched(results: Tensors, inputs: Any) -> Any:
    rows = torch.eye(results[-1].numel()).view(-1, *results[-1].shape)
    return torch.autograd.grad(results[-1], inputs, rows, is_grads_batched=True)


def in_autocast(results: Tensors, inputs: Any) -> Any:
    with torch.autocast("cpu"):
        return of_other(results, inputs)


def with_anomaly_mode(results: Tensors, inputs: Any) -> Any:
    with torch.autograd.detect_anomaly():
        return of_other(results, inputs)


def transposed(results: Tensors, inputs: Any) -> Any:
    shape = results[-1].shape
    tangent = torch.arange(float(shape.numel())).view(shape[::-1]).permute(*range(len(shape))[::-1])
    return torch.autograd.grad(results[-1], inputs, tangent)


def negative(results: Tensors, inputs: Any) -> Any:
    return torch.autograd.grad(results[-1], inputs, torch._neg_view(torch.ones(results[-1].shape)))


def with_hooks(results: Tensors, inputs: Any) -> Any:
    results[-1].register_hook(lambda grad: grad * 2)
    inputs[0].register_hook(lambda grad: grad + 1)
    node: Any = results[-1].grad_fn
    node.register_hook(lambda made, came: tuple(None if one is None else one * 3 for one in made))
    node.register_prehook(lambda came: tuple(None if one is None else one * 5 for one in came))
    return of_other(results, inputs)


def from_threads(results: Tensors, inputs: Any) -> Any:
    found: dict[int, Any] = {}

    def work(at: int) -> None:
        found[at] = torch.autograd.grad(results[-1].sum() * at, inputs, retain_graph=True)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for at in range(4) for one in found[at]]


USES = [
    of_one,
    of_other,
    twice_retained,
    of_second_order,
    batched,
    in_autocast,
    with_anomaly_mode,
    transposed,
    negative,
    with_hooks,
    from_threads,
]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("fn", [one_result, two_results])
def test_later_passes_are_as_in_eager_mode(fn: Callable[..., Tensors], use: Callable[..., Any]) -> None:
    shapes = (2, 3), (2, 3)
    run = warm(fn, *shapes)
    for _ in range(2):
        torch.testing.assert_close(gradients(run, use, *shapes), gradients(fn, use, *shapes))


def mutated(results: Tensors, inputs: Any) -> Any:
    with torch.no_grad():
        inputs[1].add_(1)
    return of_one(results, inputs)


def freed(results: Tensors, inputs: Any) -> Any:
    of_one(results, inputs)
    return of_one(results, inputs)


@pytest.mark.parametrize("use", [mutated, freed])
def test_errors_of_later_passes_are_eager_modes(use: Callable[..., Any]) -> None:
    run = warm(one_result, (3,), (3,))
    for fn in (one_result, run):
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation|second time"):
            gradients(fn, use, (3,), (3,))


def test_saved_tensor_hooks_unpack_in_later_passes() -> None:
    run = warm(one_result, (3,), (3,))
    unpacked: list[torch.Tensor] = []

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        unpacked.append(packed)
        return packed * 1

    x, w = leaf(3), leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
        [y] = run(x, w)
    torch.testing.assert_close(of_one((y,), [x, w]), of_one(one_result(x, w), [x, w]))
    assert unpacked


def test_nothing_of_a_call_outlives_its_last_pass() -> None:
    run = warm(one_result, (3,), (3,))
    x, w = leaf(3), leaf(3)
    operand = x * 1
    gone = weakref.ref(operand)
    [y] = run(operand, w)
    del operand
    assert gone() is not None
    y.sum().backward(retain_graph=True)
    assert gone() is not None
    y.sum().backward()
    gc.collect()
    assert gone() is None
