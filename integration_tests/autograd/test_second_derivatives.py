"""Gradients of gradients through compiled functions: penalties, unrolled steps, checks, across breaks and modes."""

from __future__ import annotations

import inspect
import linecache
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import framesmith
from framesmith_aten.meta import MUTATED_INPUT

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


def critic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 1))


def without_gradients_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x * 2
    return x.pow(3) * scale


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * x
    print("between", end="")
    return (y * x).exp()


def with_a_break_without_gradients(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * x
    with torch.no_grad():
        print(y.shape, end="")
        z = y * 2
    return (y * z).exp()


def with_a_graph_that_begins_without_gradients(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    with torch.no_grad():
        print("between", end="")
    z = y.sin()
    with torch.no_grad():
        o = z * 2
    greater = torch.fmax(o, z)
    print("between", end="")
    return greater + z


def of_views(x: torch.Tensor) -> torch.Tensor:
    rows = x.view(-1, 2).t()
    return rows[0].exp() * rows[1]


FUNCTIONS = [
    without_gradients_inside,
    with_a_break,
    with_a_break_without_gradients,
    with_a_graph_that_begins_without_gradients,
    of_views,
]


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions(function: Callable[..., Any], backend: str) -> None:
    found = []
    for run in (function, framesmith.compile(function, backend=backend)):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        [grad] = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
        found.append((grad, x.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
def test_ten_steps_with_a_gradient_penalty(backend: str) -> None:
    losses = []
    for compiles in (False, True):
        net = critic()
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        score = framesmith.compile(net, backend=backend) if compiles else net
        torch.manual_seed(1)
        mine = []
        for _ in range(10):
            real, fake = torch.randn(6, 4) + 1, torch.randn(6, 4)
            between = (real * 0.3 + fake * 0.7).requires_grad_()
            [grad] = torch.autograd.grad(score(between).sum(), between, create_graph=True)
            loss = score(fake).mean() - score(real).mean() + 10 * (grad.norm(dim=1) - 1).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine.append(loss.detach())
        losses.append(torch.stack(mine))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


def test_a_step_unrolled_by_hand() -> None:
    """One step of MAML: the outer gradient goes through the inner one."""

    def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w + b)

    found = []
    for run in (model, framesmith.compile(model)):
        torch.manual_seed(0)
        w, b = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
        x, y = torch.randn(5, 4), torch.randn(5, 2)
        grads = torch.autograd.grad(F.mse_loss(run(x, w, b), y), (w, b), create_graph=True)
        stepped = [value - 0.1 * grad for value, grad in zip((w, b), grads, strict=True)]
        F.mse_loss(run(x, *stepped), y).backward()
        found.append((w.grad, b.grad))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_gradcheck_and_gradgradcheck() -> None:
    run = framesmith.compile(lambda x, w: (F.softplus(x @ w) * x.sum()).sin())
    torch.manual_seed(0)
    inputs = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def shown_and_used(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x.sin()
    return a, (a * a * a).sum()


def shown_part_and_used(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = x.unbind(0)
    return a, (a * a * b).sum()


def shown_again_and_used(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x.cos()
    a = h.contiguous()
    return a, (h * a + x).exp().sum()


def past_a_hook(run: Any, x: torch.Tensor) -> Any:
    seen: list[int] = []
    a, y = run(x)
    [grad] = torch.autograd.grad(y, x, create_graph=True)
    a.register_hook(lambda g: (seen.append(1), g * 10)[1])
    grad.sum().backward()
    return x.grad, len(seen)


def with_respect_to_a_result(run: Any, x: torch.Tensor) -> Any:
    a, y = run(x)
    [grad] = torch.autograd.grad(y, a, create_graph=True)
    return grad, torch.autograd.grad(grad.sum(), [a, x])


def retained(run: Any, x: torch.Tensor) -> Any:
    a, y = run(x)
    a.retain_grad()
    [grad] = torch.autograd.grad(y, x, create_graph=True)
    grad.pow(2).sum().backward()
    return a.grad, x.grad


@pytest.mark.parametrize("act", [past_a_hook, with_respect_to_a_result, retained], ids=lambda act: act.__name__)
@pytest.mark.parametrize(
    "function", [shown_and_used, shown_part_and_used, shown_again_and_used], ids=lambda function: function.__name__
)
def test_they_pass_the_results_that_the_user_holds(function: Any, act: Any) -> None:
    start = torch.tensor([[2.0, 0.5], [3.0, 1.5]])
    wanted, found = (act(run, start.clone().requires_grad_()) for run in (function, framesmith.compile(function)))
    torch.testing.assert_close(wanted, found)


def recurrent() -> nn.Module:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)[0]  # type: ignore[no-any-return]

    return Last()


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.2), nn.Linear(6, 1))


@pytest.mark.parametrize("make", [recurrent, normalised])
def test_penalties_through_modules_with_state(make: Callable[[], nn.Module]) -> None:
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        module = make()
        run = framesmith.compile(module) if compiles else module
        x = torch.randn(5, 4, requires_grad=True)
        [grad] = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        (grad.norm() - 1).pow(2).backward()
        found.append([x.grad, *(p.grad for p in module.parameters() if p.grad is not None), *module.buffers()])
    torch.testing.assert_close(*found)


def test_weights_frozen_between_the_passes() -> None:
    found = []
    for run in (power, framesmith.compile(power)):
        x, w = torch.full((3,), 2.0, requires_grad=True), torch.ones(3, requires_grad=True)
        y = run(x, w)
        w.requires_grad_(False)
        [grad] = torch.autograd.grad(y, x, create_graph=True)
        grad.sum().backward()
        found.append((x.grad, w.grad))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] is found[1][1] is None


def power(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x**3 * w).sum()


def of_a_changed_input(x: torch.Tensor, w: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    cache[0] = x.detach()
    return (cache.sum(0) * x * w).tanh().sum()


def test_a_state_that_is_changed_and_read() -> None:
    found = []
    for run in (of_a_changed_input, framesmith.compile(of_a_changed_input, strict=True)):
        torch.manual_seed(0)
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        [grad] = torch.autograd.grad(run(x, w, torch.ones(2, 3)), x, create_graph=True)
        found.append(torch.autograd.grad(grad.pow(2).sum() + (x * w).sum(), [x, w]))
    torch.testing.assert_close(*found)


@torch.library.custom_op("integration_second::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


cube.register_fake(torch.empty_like)
cube.register_autograd(
    lambda ctx, grad: 3 * ctx.x**2 * grad, setup_context=lambda ctx, inputs, output: setattr(ctx, "x", inputs[0])
)


def of_an_operator_of_the_users(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (cube(x) * w).tanh().sum()


def test_where_there_are_none_the_error_comes_whatever_is_asked_for() -> None:
    run = framesmith.compile(of_an_operator_of_the_users)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for wanted in ([x, w], [w]):
        [grad] = torch.autograd.grad(run(x, w), x, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward through a compiled graph"):
            torch.autograd.grad(grad.pow(2).sum() + (x * w).sum(), wanted, allow_unused=True)


def assert_as_in_eager_mode(
    function: Callable[..., Any], outcome: Callable[[Callable[..., Any]], Sequence[torch.Tensor]]
) -> None:
    """Checks that the tensors are the same that come of running the function and of running it compiled."""
    expected, found = outcome(function), outcome(framesmith.compile(function, strict=True))
    for eager, compiled in zip(expected, found, strict=True):
        torch.testing.assert_close(compiled, eager)


def filled(x: torch.Tensor) -> None:
    x.fill_(2.0)


def a_view_scaled(x: torch.Tensor) -> None:
    x.view(-1)[1:].mul_(2.0)


def counted_up(x: torch.Tensor) -> None:
    x += 1


def an_item_set(x: torch.Tensor) -> None:
    x[0] = 1


def asked_to_write(x: torch.Tensor) -> None:
    F.relu(x, inplace=True)


def each_of_some(x: torch.Tensor) -> None:
    for tensor, factor in ((x, 2), (x, 3)):
        tensor.mul_(factor)


def without_gradients(x: torch.Tensor) -> None:
    with torch.no_grad():
        x.mul_(3)


def a_detached_view(x: torch.Tensor) -> None:
    turned = x.t()
    turned.detach().zero_()


def by_a_function_made_there(x: torch.Tensor) -> None:
    def change() -> None:
        x.mul_(2)

    change()


def by_an_unbacked_number(x: torch.Tensor) -> None:
    x.fill_(torch.tensor(2.0).item())


#: Each changes a tensor of two rows in place.
CHANGES = [
    filled, a_view_scaled, counted_up, an_item_set, asked_to_write, each_of_some, without_gradients, a_detached_view,
    by_a_function_made_there, by_an_unbacked_number,
]  # fmt: skip


def rewriting(change: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function whose graph depends on a tensor that eager mode does not keep and the code behind a break changes.

    The code stands in the function itself, as it would there.
    """
    lines = inspect.getsource(change).splitlines()[1:]
    text = ["def function(x):", "    y = (x * 1).sin()", "    print(end='')", *lines, "    return y"]
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    linecache.cache[change.__name__] = (0, None, text, change.__name__)
    exec(compile("\n".join(text), change.__name__, "exec"), namespace)
    function: Callable[[torch.Tensor], torch.Tensor] = namespace["function"]
    return function


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_of_an_input_that_is_changed_behind_a_break(change: Callable[[torch.Tensor], None]) -> None:
    function = rewriting(change)

    def outcome(run: Callable[..., Any]) -> Sequence[torch.Tensor]:
        leaf = torch.arange(6.0).view(2, 3).requires_grad_()
        (grad,) = torch.autograd.grad(run(leaf * 1).pow(2).sum(), leaf, create_graph=True)
        return (grad, *torch.autograd.grad(grad.pow(2).sum(), leaf))

    assert_as_in_eager_mode(function, outcome)


def test_of_an_input_that_the_code_behind_a_break_only_reads() -> None:
    """It is not copied; an expanded one could not be, as it is laid out."""
    marked = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        marked.extend(MUTATED_INPUT.get(node) for node in graph.graph.find_nodes(op="placeholder"))
        return graph.forward

    def function(x: torch.Tensor, held: Any) -> torch.Tensor:
        y = x.sin()
        print(end="")
        y.copy_(x)
        held.buffer.copy_(x.detach())
        x = y * 2
        x += 1
        return F.dropout(x, 0.5, False, inplace=False)

    x = torch.ones(1).expand(4).detach().requires_grad_()
    held = types.SimpleNamespace(buffer=torch.zeros(4))
    result = framesmith.compile(function, backend=backend, strict=True)(x, held)
    torch.testing.assert_close(result, function(x, held))
    assert marked
    assert not any(marked)


def test_of_an_input_that_shares_memory_with_one_changed_behind_a_break() -> None:
    def function(x: torch.Tensor, alias: torch.Tensor) -> torch.Tensor:
        y = alias.masked_fill(alias.isnan(), 0.0)
        print(end="")
        x.fill_(3)
        return y.abs()

    def outcome(run: Callable[..., Any]) -> Sequence[torch.Tensor]:
        leaf = torch.tensor([-1.0, 2.0, -3.0]).requires_grad_()
        x = leaf * 1
        (grad,) = torch.autograd.grad(run(x, x.view(-1)).pow(2).sum(), leaf, create_graph=True)
        return (grad, *torch.autograd.grad(grad.pow(2).sum(), leaf))

    assert_as_in_eager_mode(function, outcome)


def a_matmul_of_what_has_no_derivative(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    doubled = x * 2
    return torch.addcmul(x // x, x, doubled, value=3), doubled


def rounded_and_not(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x // 2 * w, x * w


def of_two_inputs(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    next_to_it = torch.nextafter(x, w)
    return (next_to_it + w * x).sin(), next_to_it


def kept_and_changed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    z = y * w
    y.add_(1)
    return z, y


@pytest.mark.sampled(2)
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("wanted", ["x", "w", "second result", "both", "leaves"])
@pytest.mark.parametrize(
    "function", [a_matmul_of_what_has_no_derivative, rounded_and_not, of_two_inputs, kept_and_changed]
)
def test_what_autograd_refuses_is_refused_where_it_leads_to_what_is_asked_for(
    function: Callable[..., Any], wanted: str, history: bool
) -> None:
    def outcome(run: Callable[..., Any], both_results: bool) -> Any:
        leaves = torch.tensor([0.5, -1.5, 2.5]).requires_grad_(), torch.tensor([1.0, 2.0, 3.0]).requires_grad_()
        x, w = leaves[0] * 1, leaves[1]
        results = run(x, w)
        of = {"x": [x], "w": [w], "second result": [results[1]], "both": [x, w], "leaves": [*leaves]}[wanted]
        roots = [result.sum() for result in (results if both_results else results[:1])]
        try:
            grads = torch.autograd.grad(roots, of, create_graph=history, allow_unused=True)
            penalty = [grad.pow(2).sum() for grad in grads if grad is not None and grad.requires_grad]
            further = torch.autograd.grad(sum(penalty), leaves, allow_unused=True) if penalty else ()
        except RuntimeError as error:
            return type(error).__name__, "is not implemented" in str(error)
        return [grad if grad is None else grad.detach() for grad in (*grads, *further)]

    compiled = framesmith.compile(function, strict=True)
    for both_results in (False, True):
        found, expected = outcome(compiled, both_results), outcome(function, both_results)
        if isinstance(expected, tuple) or isinstance(found, tuple):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)


def test_of_what_autograd_refuses_it_comes_first_to_what_it_comes_to_first_in_eager_mode() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.floor_divide(x, 0.5).unique()

    result = framesmith.compile(function, strict=True)(torch.tensor([1.0, 2.0], requires_grad=True))
    with pytest.raises(NotImplementedError, match="_unique2"):
        result.sum().backward()


def test_what_is_left_in_an_input_is_read_as_it_is_when_the_pass_runs() -> None:
    def function(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            p.add_(1)
        y = p * x
        print(end="")
        p.data.mul_(2)
        return y

    def outcome(run: Callable[..., Any]) -> Sequence[torch.Tensor]:
        p, x = torch.tensor([1.0, 3.0]).requires_grad_(), torch.tensor([5.0, 6.0]).requires_grad_()
        grads = torch.autograd.grad(run(p, x).sum(), (p, x), create_graph=True)
        return (*grads, *torch.autograd.grad(sum(grad.pow(2).sum() for grad in grads), (p, x)))

    assert_as_in_eager_mode(function, outcome)


def test_what_is_refused_of_a_node_keeps_nothing_from_its_other_gradients() -> None:
    """Nor what happens to inputs that only what is refused reads."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x // 2 + w

    x, w = torch.tensor([1.0, 3.0]).requires_grad_(), torch.tensor([2.0, 5.0]).requires_grad_()
    result = framesmith.compile(function, strict=True)(x, w)
    with torch.no_grad():
        x.add_(1)
    for _ in range(2):  # nothing is kept
        assert torch.autograd.grad(result.sum(), w)[0].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="floor_divide is not implemented"):
        result.sum().backward()


def test_what_nobody_asks_for_is_not_refused_under_create_graph() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        t = x // w
        return (t * v).sin(), (t + w) * v, v * w

    def outcome(run: Callable[..., Any]) -> Sequence[torch.Tensor]:
        leaves = [torch.tensor([1.0, 3.0]).requires_grad_() for _ in range(3)]
        (grad,) = torch.autograd.grad(sum(one.sum() for one in run(*leaves)), leaves[2], create_graph=True)
        return (grad, *torch.autograd.grad(grad.pow(2).sum(), leaves[2]))

    assert_as_in_eager_mode(function, outcome)


def test_what_eager_mode_keeps_of_an_input_is_read_when_the_pass_runs() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        print(end="")
        x.data.mul_(2)
        return y

    def outcome(run: Callable[..., Any]) -> Sequence[torch.Tensor]:
        x, w = torch.tensor([1.0, 3.0]).requires_grad_(), torch.tensor([5.0, 6.0]).requires_grad_()
        return torch.autograd.grad(run(x, w).sum(), (x, w), create_graph=True)

    assert_as_in_eager_mode(function, outcome)
