"""Derivative graphs: compiled first derivatives that autograd differentiates again."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import Recording, graph_of, pair

from framesmith_aot import compile_graph
from framesmith_aot.errors import SecondDerivativeWarning

pytestmark = pytest.mark.filterwarnings("error::framesmith_aot.errors.SecondDerivativeWarning")

aten = torch.ops.aten


class Compiled:
    """A compiled function and the graphs that were compiled for it."""

    def __init__(self, program: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> None:
        self.recording = Recording()
        self.graph = compile_graph(graph_of(program), list(inputs), compiler=self.recording, **options)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self.graph(*inputs)

    def calls(self, role: str, number: int) -> list[Any]:
        graph = self.recording.graphs[role][number].graph
        return [node.target for node in graph.nodes if node.op == "call_function"]

    def count(self, role: str) -> int:
        return len(self.recording.graphs[role])


def network(x: Any, w: Any, v: Any) -> Any:
    return (torch.tanh(x @ w) @ v,)


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def penalty(run: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    [grad] = torch.autograd.grad(run(*inputs)[0].sum(), inputs[0], create_graph=True)
    (grad.norm(2, 1) - 1).pow(2).mean().backward()
    return [grad, *[one.grad for one in inputs if one.grad is not None]]


def test_a_penalty_is_that_of_eager_mode() -> None:
    torch.testing.assert_close(penalty(Compiled(network, *operands()), operands()), penalty(network, operands()))


def test_the_graph_of_derivatives_reads_what_the_call_saved() -> None:
    run = Compiled(network, *operands())
    penalty(run, operands())
    assert run.calls("forward", 0).count(aten.mm.default) == 2
    assert run.calls("forward", 1).count(aten.mm.default) == 2  # those of the backward pass
    assert aten.tanh.default not in run.calls("forward", 1)


def test_gradients_that_nobody_asks_for_are_not_computed() -> None:
    run = Compiled(network, *operands())
    penalty(run, operands())
    inputs = operands()
    torch.autograd.grad(run(*inputs)[0].sum(), inputs, create_graph=True)
    assert [run.calls("forward", at).count(aten.mm.default) for at in (1, 2)] == [2, 4]


def test_one_graph_serves_every_call() -> None:
    run = Compiled(network, *operands())
    for _ in range(3):
        penalty(run, operands())
    assert (run.count("forward"), run.count("backward")) == (2, 1)  # one of them is the call's own


def test_several_gradients_have_one_backward_pass() -> None:
    def of_all(run: Callable[..., Any]) -> Any:
        inputs = operands()
        grads = torch.autograd.grad(run(*inputs)[0].pow(2).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((grad * grad.detach()).sum() for grad in grads), inputs)

    run = Compiled(network, *operands())
    torch.testing.assert_close(of_all(run), of_all(network))
    assert run.count("backward") == 2


def test_gradients_are_no_views_of_tensors_that_nobody_has() -> None:
    inputs = operands()
    grads = torch.autograd.grad(Compiled(layers, *inputs)(*inputs)[0].sum(), inputs, create_graph=True)
    assert [grad._base for grad in grads] == [None] * 3
    torch.testing.assert_close(grads, torch.autograd.grad(layers(*inputs)[0].sum(), inputs, create_graph=True))


def layers(x: Any, w: Any, v: Any) -> Any:
    return (F.linear(F.linear(x, w).tanh(), v.t()),)


def seen_by_hooks(run: Callable[..., Any]) -> Any:
    inputs = operands()
    seen: list[int] = []
    for at, one in enumerate(inputs):
        one.register_hook(lambda grad, at=at: (seen.append(at), grad * 2)[1])
    grads = torch.autograd.grad(run(*inputs)[0].sum(), inputs, create_graph=True)
    grads[2].sum().backward()  # does not depend on the last one
    return seen, [one.grad for one in inputs]


def test_hooks_see_what_they_see_in_eager_mode() -> None:
    (seen, grads), (expected, wanted) = seen_by_hooks(Compiled(network, *operands())), seen_by_hooks(network)
    assert sorted(seen) == sorted(expected) == [0, 0, 1, 1, 2]  # the last one by the first pass alone
    torch.testing.assert_close(grads, wanted)


def with_dropout(x: Any, w: Any) -> Any:
    return ((F.dropout(x * w, 0.5) * torch.rand_like(x)).exp() * x,)


def test_masks_and_other_random_numbers_are_not_drawn_again() -> None:
    found = []
    run = Compiled(with_dropout, *pair())
    for one in (with_dropout, run):
        x, w = pair()
        torch.manual_seed(3)
        [y] = one(x, w)
        value, seen = y.sum(), []
        for _ in range(3):
            [grad] = torch.autograd.grad(value, x, create_graph=True)
            seen.append(grad)
            value = grad.pow(2).sum()
        found.append([*seen, torch.rand(3)])
    torch.testing.assert_close(*found)
    random = {aten.bernoulli.p, aten.rand_like.default, aten.rand.default}
    assert not random & {*run.calls("forward", 1)}


def test_generators_stay_as_they_are_where_no_numbers_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Compiled(with_dropout, *pair())
    x, w = pair()
    [y] = run(x, w)
    monkeypatch.setattr(torch, "set_rng_state", None)
    [grad] = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert grad.requires_grad


def test_fourth_derivatives() -> None:
    found = []
    for run in (network, Compiled(network, *operands())):
        inputs = operands()
        value = run(*inputs)[0].sum()
        for _ in range(3):
            value = sum(grad.sin().sum() for grad in torch.autograd.grad(value, inputs, create_graph=True))
        found.append(torch.autograd.grad(value, inputs))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_prod_of_zeros(zeros: int) -> None:
    def prod(x: Any, w: Any) -> Any:
        return (torch.prod(x) * w.sum(), torch.prod(w, 1))

    found = []
    for compiles in (False, True):
        x, w = pair()
        with torch.no_grad():
            x[0, :zeros] = w[1, :zeros] = 0
        run = Compiled(prod, *pair()) if compiles else prod
        grads = torch.autograd.grad(sum(one.sum() for one in run(x, w)), (x, w), create_graph=True)
        found.append([*grads, *torch.autograd.grad(sum(one.pow(2).sum() for one in grads), (x, w))])
    torch.testing.assert_close(*found)


def test_a_refused_second_derivative_is_refused_where_it_is_asked_for() -> None:
    def rounded(x: Any, w: Any, v: Any) -> Any:
        return ((x // w * v).sin() + v * w,)

    found = []
    for run in (rounded, Compiled(rounded, *operands())):
        inputs = operands()
        [grad] = torch.autograd.grad(run(*inputs)[0].sum(), inputs[2], create_graph=True)
        found.append(torch.autograd.grad(grad.pow(2).sum(), inputs[2], retain_graph=True))
        with pytest.raises(RuntimeError, match="floor_divide is not implemented"):
            torch.autograd.grad(grad.pow(2).sum(), inputs[0])
    torch.testing.assert_close(*found)


def test_an_input_changed_after_the_first_pass_is_an_error() -> None:
    for run in (network, Compiled(network, *operands())):
        x, w, v = operands()
        [grad] = torch.autograd.grad(run(x, w, v)[0].sum(), x, create_graph=True)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            grad.sum().backward()


def test_inputs_are_let_go_with_the_gradients() -> None:
    run = Compiled(network, *operands())
    inputs = operands()
    scaled = inputs[0] * 2
    gone = weakref.ref(scaled)
    [y] = run(scaled, *inputs[1:])
    [grad] = torch.autograd.grad(y.sum(), scaled, create_graph=True)
    del y, scaled
    grad.sum().backward()
    gc.collect()
    assert gone() is None and grad.grad_fn is not None


def test_a_pass_under_autocast_computes_in_the_dtypes_of_the_call() -> None:
    found = []
    for run in (network, Compiled(network, *[one.float() for one in operands()])):
        inputs = [one.detach().float().requires_grad_() for one in operands()]
        [y] = run(*inputs)
        with torch.autocast("cpu", torch.bfloat16):
            [grad] = torch.autograd.grad(y.sum(), inputs[0], create_graph=True)
        grad.pow(2).sum().backward()
        found.append([grad, *[one.grad for one in inputs]])
    assert found[1][0].dtype == torch.float32
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)  # eager mode casts in the pass, too


def test_what_is_not_compiled_is_replayed_and_says_why() -> None:
    def rewriting(x: Any, w: Any) -> Any:
        y = x * 2
        w.mul_(y)
        return ((w * y).sin(),)

    x, w = (one * 1 for one in pair())
    run = Compiled(rewriting, x, w)
    leaves = pair()
    [y] = run(leaves[0] * 1, leaves[1] * 1)
    with pytest.warns(SecondDerivativeWarning, match="changes an input with gradients in place"):
        torch.autograd.grad(y.sum(), leaves, create_graph=True)


def test_a_failure_to_compile_is_reported_and_replayed() -> None:
    errors: list[str] = []
    plain = Recording()

    def compiler(gm: Any, inputs: Any, role: Any) -> Any:
        if plain.graphs["forward"] and role == "forward":
            raise ValueError("not today")
        return plain(gm, inputs, role)

    def on_error(what: str, error: Exception) -> None:
        errors.append(f"{what}: {error}")

    run = compile_graph(graph_of(network), operands(), compiler=compiler, on_error=on_error)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecondDerivativeWarning)
        found = penalty(run, operands())
    torch.testing.assert_close(found, penalty(network, operands()))
    assert errors == ["a graph (second derivatives): not today"]
