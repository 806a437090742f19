"""Second derivatives as in eager mode, or an error that says why there are none."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of, of, pair

from framesmith_aot import DoubleBackwardError

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


def one_result(x: Any, w: Any) -> Any:
    return ((x * w).exp() * x.cos(),)


def feature_and_score(x: Any, w: Any) -> Any:
    feature = torch.tanh(x @ w.t())
    return feature, (feature * feature).sum(0)


def hidden_trunk(x: Any, w: Any) -> Any:
    trunk = torch.tanh(x * w)
    return trunk.sin(), trunk.pow(3)


def detached(x: Any, w: Any) -> Any:
    return ((x.sin() * (x * 2).detach()).exp() * w,)


def normalized(x: Any, w: Any) -> Any:
    return (F.layer_norm(x, (4,), w[0], w[1]).sigmoid(),)


def operators_by_names(x: Any, w: Any) -> Any:
    return (
        torch.ops.aten.prod.dim_int(self=x * w, dim=1).sin() + torch.ops.aten.addcmul.default(w, w, tensor2=x)[:, 0],
    )


def linear_in_all(x: Any, w: Any) -> Any:
    return x + 2 * w, x - w


PROGRAMS = [
    one_result, feature_and_score, hidden_trunk, detached, normalized, operators_by_names, linear_in_all
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_penalty_on_gradients_is_that_of_eager(program: Callable[..., Any]) -> None:
    found = []
    for run in (program, of(program, *pair())):
        inputs = pair()
        results = run(*inputs)
        loss = sum(result.pow(2).sum() for result in results)
        grads = torch.autograd.grad(loss, inputs, create_graph=True)
        (sum((grad.norm() - 1).pow(2) for grad in grads) + loss).backward()
        found.append([value.grad for value in inputs])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("program", [one_result, feature_and_score, hidden_trunk, normalized, linear_in_all])
def test_gradgradcheck(program: Callable[..., Any]) -> None:
    inputs = pair()
    run = of(program, *inputs)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_third_derivatives() -> None:
    found = []
    for run in (one_result, of(one_result, *pair())):
        x, w = pair()
        value = run(x, w)[0].sum()
        for _ in range(3):
            value = torch.autograd.grad(value, x, create_graph=True)[0].sum()
        found.append(value)
    torch.testing.assert_close(*found)


def saved_result(x: Any, w: Any) -> Any:
    return ((x * w).tanh(),)


def saved_results_of_each_other(x: Any, w: Any) -> Any:
    a = (x * w).exp()
    b = F.softmax(a, -1)
    return a, b, (a * b).sigmoid()


@pytest.mark.parametrize(
    "program",
    [saved_result, saved_results_of_each_other, feature_and_score, hidden_trunk],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("loss", [torch.sum, lambda one: one.pow(2).sum()], ids=["linear", "squared"])
def test_a_second_pass_comes_by_the_results(program: Callable[..., Any], loss: Callable[..., Any]) -> None:
    """Second derivatives lead through results that eager mode saves for backward."""
    found = []
    for run in (program, of(program, *pair())):
        inputs = pair()
        results = run(*inputs)
        seen: list[Any] = []
        for number, result in enumerate(results):
            result.retain_grad()
            result.register_hook(lambda grad, number=number: seen.append(number))
        total = sum(loss(result) for result in results)
        grads = torch.autograd.grad(total, inputs, create_graph=True)
        second = sum(grad.sin().sum() for grad in grads)
        seen += torch.autograd.grad(second, [*results, *inputs], create_graph=True, materialize_grads=True)
        seen += torch.autograd.grad(sum(one.sum() for one in seen[-2:]), inputs, retain_graph=True)
        second.backward()
        found.append([*seen, *[one.grad for one in (*results, *inputs)]])
    assert len(found[0]) == len(found[1])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_a_gradient_given_is_differentiated_once_though_the_input_was_made_of_it() -> None:
    found = []
    for run in (saved_result, of(saved_result, pair()[0] * 1, pair()[1])):
        t, w = pair()
        x = t * 2
        [result] = run(x, w)
        [grad] = torch.autograd.grad(result, x, t, create_graph=True)
        found.append(torch.autograd.grad(grad.sum(), (t, x, w, result)))
    torch.testing.assert_close(*found)


def test_random_numbers_are_those_of_the_call_and_the_generator_does_not_move() -> None:
    def noisy(x: Any, w: Any) -> Any:
        return ((F.dropout(x, 0.5) * w).exp(),)

    found = []
    for run in (noisy, of(noisy, *pair())):
        x, w = pair()
        torch.manual_seed(3)
        [result] = run(x, w)
        before = torch.rand(())
        [grad] = torch.autograd.grad(result.sum(), x, create_graph=True)
        found.append((grad, *torch.autograd.grad(grad.pow(2).sum(), w), before, torch.rand(())))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_inputs_that_are_written_to_beside_the_results() -> None:
    def counting(x: Any, count: Any) -> Any:
        count.add_(1)
        return (x.sin() * x,)

    found = []
    for run in (counting, of(counting, pair()[0], torch.zeros(()))):
        x, count = pair()[0], torch.zeros(())
        [grad] = torch.autograd.grad(run(x, count)[0].sum(), x, create_graph=True)
        found.append((*torch.autograd.grad(grad.sum(), x), count))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_an_input_changed_since_is_refused_as_in_eager() -> None:
    x, w = pair()
    [result] = of(one_result, x, w)(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


def three_nodes(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin() * x, w.clone(), x.cos() * v.cos()


@pytest.mark.parametrize(("changed", "read"), [(at, result) for at in range(3) for result in range(3)])
def test_an_input_changed_since_matters_to_what_is_computed_of_it(changed: int, read: int) -> None:
    """Each result has a node of its own, and depends on its own inputs: a copy's gradient depends on none."""

    def operands() -> list[torch.Tensor]:
        return [torch.linspace(-1, 1, 4).requires_grad_() for _ in range(3)]

    found: list[Any] = []
    for run in (three_nodes, of(three_nodes, *operands())):
        inputs = operands()
        loss = run(*inputs)[read].pow(2).sum()
        with torch.no_grad():
            inputs[changed].add_(1)
        try:
            grads = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True, materialize_grads=True)
            second = torch.autograd.grad(sum(one.pow(2).sum() for one in grads), inputs, materialize_grads=True)
            found.append([*grads, *second])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append([])
    assert bool(found[0]) == bool(found[1]) == ((changed, read) not in {(0, 0), (0, 2), (2, 2)})
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_inputs_are_let_go_with_the_graph() -> None:
    x, w = pair()
    scaled = x * 2
    gone = weakref.ref(scaled)
    [result] = of(one_result, scaled, w)(scaled, w)
    del scaled
    result.sum().backward()
    gc.collect()
    assert gone() is None and result.grad_fn is not None


def test_what_a_linear_backward_pass_copies_is_differentiable():
    fn = lambda x: (x.t() + 1, x.as_strided((2, 2), (1, 2)) * 1)  # noqa: E731
    found = []
    x = torch.randn(2, 2, requires_grad=True)
    for run in (fn, compiled(graph_of(fn), [x])):
        (grad,) = torch.autograd.grad(sum((out * x).sum() for out in run(x)), x, create_graph=True)
        found.append(torch.autograd.grad(grad.pow(2).sum(), x))
    torch.testing.assert_close(*found)


def test_a_third_pass_that_retains_nothing() -> None:
    """Passes of higher order share one replay."""

    def both(x: Any, w: Any) -> Any:
        return ((x * w).tanh(), (x * w).sigmoid())

    found = []
    for run in (both, of(both, *pair())):
        x, w = pair()
        u = sum(run(x, w))
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
        (second + u * first).pow(2).mean().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(*found)


def test_hooks_on_other_inputs() -> None:
    def eager(x: Any, w: Any) -> Any:
        return (x * 2).tanh(), w.sin()

    found = []
    for run in (eager, of(eager, pair()[0], pair()[1] * 1)):
        x, w = pair()
        used = w * 1
        seen: list[Any] = []
        used.register_hook(lambda grad, seen=seen: seen.append(grad * 2))
        [grad] = torch.autograd.grad(run(x, used)[0].sum(), x, create_graph=True)
        grad.sum().backward()
        found.append((x.grad, len(seen)))
    torch.testing.assert_close(*found)


def test_what_is_read_by_way_of_hidden_results() -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        h = x * x
        return h.sin(), h.cos()

    found = []
    leaf = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    for run in (f, of(f, leaf * 1)):
        x = leaf * 1
        results = run(x)
        x.register_hook(lambda grad: grad * 10)
        [grad] = torch.autograd.grad(sum(results).sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(grad.sum(), (x, leaf)))
    torch.testing.assert_close(*found)


def test_results_of_the_backward_pass_are_held_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_aot.runtime.backward import BackwardPass

    holders: list[int] = []
    plain = BackwardPass._run

    def counting(self: Any, saved: list[torch.Tensor], tangents: Any) -> Any:
        holders.extend(sys.getrefcount(one) for one in saved)
        return plain(self, saved, tangents)

    monkeypatch.setattr(BackwardPass, "_run", counting)
    x, w = pair()
    run = of(saved_result, x, w)
    run(x, w)[0].sum().backward()
    assert holders and min(holders) <= 3  # the list, the loop, the argument


def test_batched_gradients_of_transposed_results() -> None:
    def f(x: Any) -> Any:
        return (torch.relu(x),)

    x = torch.randn(2, 3, dtype=torch.float64).t().requires_grad_()
    run = of(f, x)
    jacobians = [
        torch.autograd.functional.jacobian(lambda x, one=one: one(x)[0], x, vectorize=True) for one in (f, run)
    ]
    torch.testing.assert_close(*jacobians)


def branch(x: Any, w: Any) -> Any:
    return ((x + w).tanh(),)


def test_histories_are_those_of_the_call_though_leaves_are_frozen_meanwhile() -> None:
    found = []
    for compiles in (False, True):
        x, w = torch.linspace(0, 1, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        [y] = (compiled(graph_of(branch), [x, w]) if compiles else branch)(x, w)
        w.requires_grad_(False)
        [first] = torch.autograd.grad(y.sum(), [x], create_graph=True)
        assert not w.requires_grad
        w.requires_grad_()
        (first**2).sum().backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("changes", [lambda x, h, z: x.add_(z), lambda x, h, z: h.add_(z)])
def test_what_is_changed_by_its_own_results_is_let_go(changes: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        h = x + w
        return h, h + w

    w = torch.ones(3, requires_grad=True)
    run = compiled(graph_of(f), [w * 1, w])
    gone = []
    for _ in range(3):
        x = w * 1
        h, z = run(x, w)
        changes(x, h, z)
        gone += [weakref.ref(x), weakref.ref(h)]
    del x, h, z
    assert [one() for one in gone] == [None] * len(gone)


def test_a_result_detached_since_is_led_through() -> None:
    def f(x: Any, w: Any) -> Any:
        h = (x * w).sin()
        return h, (h + w).exp()

    found = []
    for compiles in (False, True):
        x, w = torch.linspace(0, 1, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        h, z = (compiled(graph_of(f), [x, w]) if compiles else f)(x, w)
        h.detach_()
        first = torch.autograd.grad(z.sum(), [x, w], create_graph=True)
        found.append(torch.autograd.grad(sum((one**2).sum() for one in first), [x, w]))
    torch.testing.assert_close(*found)


def test_the_default_dtype_is_that_of_the_call() -> None:
    found = []
    for compiles in (False, True):
        x = torch.linspace(0, 1, 3, dtype=torch.float64, requires_grad=True)
        program = lambda x: ((x * (torch.ones(3) / 3)).sin(),)  # noqa: E731
        torch.set_default_dtype(torch.float64)
        try:
            [y] = (compiled(graph_of(program), [x]) if compiles else program)(x)
        finally:
            torch.set_default_dtype(torch.float32)
        [first] = torch.autograd.grad(y.sum(), [x], create_graph=True)
        found.append(torch.autograd.grad(first.sum(), [x])[0])
    torch.testing.assert_close(*found, rtol=1e-14, atol=0)


def test_threads_leave_the_generator_where_it_was() -> None:
    def f(x: Any) -> Any:
        return (F.dropout(x.sin(), 0.5).exp(),)

    x = torch.ones(64, requires_grad=True)
    run = compiled(graph_of(f), [x])
    state = torch.get_rng_state()
    results = [run(x)[0] for _ in range(8)]
    state_after = torch.get_rng_state()
    assert not torch.equal(state, state_after)

    def differentiate(y: torch.Tensor) -> None:
        [first] = torch.autograd.grad(y.sum(), [x], create_graph=True)
        first.sum().backward()

    threads = [threading.Thread(target=differentiate, args=(y,)) for y in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), state_after)


def test_a_second_derivative_within_autocast_does_not_change_its_nesting() -> None:
    x = torch.ones(3, requires_grad=True)
    run = compiled(graph_of(branch), [x, x.detach()])
    with torch.autocast("cpu"):
        [y] = run(x, x.detach())
        [first] = torch.autograd.grad(y.float().sum(), [x], create_graph=True)
        first.sum().backward()
        torch.autocast_increment_nesting()
        assert torch.autocast_decrement_nesting() == 1
    torch.autocast_increment_nesting()
    assert torch.autocast_decrement_nesting() == 0


def test_a_hook_on_a_result_that_was_changed_since() -> None:
    def f(x: Any) -> Any:
        h = x * x
        return h, (h + 3) * x.sin()

    found = []
    for compiles in (False, True):
        x = torch.linspace(0.5, 1, 4, requires_grad=True)
        h, z = (compiled(graph_of(f), [x]) if compiles else f)(x)
        h.register_hook(lambda grad: grad * 10)
        h.add_(1)
        [first] = torch.autograd.grad(z.sum(), [x], create_graph=True)
        found.append((first, torch.autograd.grad(first.sum(), [x])[0]))
    torch.testing.assert_close(*found)


def test_mutated_unsaved_inputs_are_an_obstacle_to_second_derivatives_only() -> None:
    def free(t: torch.Tensor) -> None:
        t.untyped_storage().resize_(0)

    def change(t: torch.Tensor) -> None:
        t.add_(1)

    for happens, words in ((free, "was freed since"), (change, "changed in place since the call")):
        x, t = torch.linspace(1, 2, 3).requires_grad_(), torch.ones(3)
        run = compiled(graph_of(lambda x, t: ((x + t).exp(),)), [x, t])
        [y] = run(x, t)
        happens(t)
        [grad] = torch.autograd.grad(y.sum(), [x], create_graph=True)
        torch.testing.assert_close(grad.detach(), (x + 1).exp().detach())
        with pytest.raises(DoubleBackwardError, match=words):
            torch.autograd.grad(grad.sum(), [x])


def test_passes_by_torchs_own_operators_leave_no_text() -> None:
    from torch.fx.graph_module import _loader

    x = torch.ones(3, requires_grad=True)
    [y] = compiled(graph_of(lambda x: (x * 2,)), [x])(x)
    torch.autograd.grad(y.sum(), [x], create_graph=True, retain_graph=True)
    before = len(_loader.eval_cache)
    for _ in range(5):
        torch.autograd.grad(y.sum(), [x], create_graph=True, retain_graph=True)
    assert len(_loader.eval_cache) == before
