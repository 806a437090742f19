"""Results acted on in every way, under every grad mode, with a break or none: as in eager.

Half of the drawn cases are tried; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith
from integration_tests.harness.sweeps import a_part

#: Makers of a result from a trunk and a parameter.
MAKES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "scaled": lambda h, w: h * w,
    "tanh": lambda h, w: (h + w).tanh(),
    "linear": lambda h, w: F.linear(h, w[:2, :3]),
    "row": lambda h, w: h[0] * 1,
    "view of the trunk": lambda h, w: h.view(-1),
    "transposed": lambda h, w: h.t(),
    "slice": lambda h, w: h[:, 1:],
    "part": lambda h, w: h.split(1)[0],
    "reduced": lambda h, w: (h * w).sum(),
    "sign": lambda h, w: h.sgn(),
    "softmax": lambda h, w: (h * w).softmax(-1),
    "dropout": lambda h, w: F.dropout(h * w, 0.5),
    "relu in place": lambda h, w: (h + w).relu_(),
    "detached": lambda h, w: (h * w).detach(),
    "the trunk": lambda h, w: h,
    "without gradients": lambda h, w: _without(h * w),
    "a view without": lambda h, w: _without_view(h),
}


def _without(value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return value * 2


def _without_view(value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return value.view(-1)


def _backward(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    sum(one.sum() * (at + 1) for at, one in enumerate(results)).backward()  # type: ignore[union-attr]


def _one_by_one(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    for one in results:
        if one.requires_grad:
            one.sum().backward(retain_graph=True)


def _twice(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    results[-1].sum().backward()
    results[-1].sum().backward()


def _hooks(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    for at, one in enumerate(results):
        if one.requires_grad:
            one.register_hook(lambda grad, at=at: seen.append((at, grad.clone())) or grad * 2)  # type: ignore[misc, func-returns-value]
    _backward(results, leaves, seen)
    seen.sort(key=lambda entry: entry[0])  # hooks of results that do not depend on each other have no order


def _retain(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    for one in results:
        one.retain_grad()
    _backward(results, leaves, seen)
    seen += [one.grad for one in results]


def _to_results(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    seen += torch.autograd.grad(results[-1].sum(), [*results[:-1], *leaves], allow_unused=True)


def _double(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    total = sum((one * one).sum() for one in results)
    grads = [one for one in torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True) if one is not None]  # type: ignore[arg-type]
    seen += grads
    sum((one * one).sum() for one in grads).backward()  # type: ignore[union-attr]


def _changed(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    results[0].mul_(3)
    _backward(results, leaves, seen)


def _changed_silently(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    with torch.no_grad():
        results[0].add_(1)
    _backward(results, leaves, seen)


def _changed_through_a_view(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    results[0].view(-1)[:1].zero_()
    _backward(results, leaves, seen)


def _leaf_changed(results: list[torch.Tensor], leaves: list[torch.Tensor], seen: list[Any]) -> None:
    with torch.no_grad():
        leaves[1].add_(1)
    _backward(results, leaves, seen)


ACTS: list[Callable[[list[torch.Tensor], list[torch.Tensor], list[Any]], None]] = [
    _backward, _one_by_one, _twice, _hooks, _retain, _to_results, _double, _changed, _changed_silently,
    _changed_through_a_view, _leaf_changed,
]  # fmt: skip

MODES: dict[str, Callable[[], Any]] = {
    "recording": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def program(first: str, second: str, broken: bool, inside: str | None) -> Callable[[Any, Any], list[torch.Tensor]]:
    """Two results of one trunk; `broken`: with a graph break between; `inside`: a mode around the first."""
    make, other = MAKES[first], MAKES[second]

    def run(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        h = (x * w).sin()
        if inside is None:
            one = make(h, w)
        else:
            with MODES[inside]():
                one = make(h, w)
        if broken:
            print(end="")
        return [one, other(h, w)]

    return run


def observed(run: Callable[..., list[torch.Tensor]], act: Callable[..., None], around: str, inner: bool) -> list[Any]:
    """Return the outcome of a call and of the actions on its results."""
    torch.manual_seed(0)
    leaves = [torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(), torch.linspace(0.5, 2, 6).reshape(2, 3)]
    leaves[1].requires_grad_()
    seen: list[Any] = []
    given = [leaf * 1 for leaf in leaves] if inner else leaves
    try:
        with MODES[around]():
            results = run(*given)
        seen += [(one.requires_grad, one.is_leaf, one.is_inference(), one.stride()) for one in results]
        act(results, leaves, seen)
    except (RuntimeError, AttributeError) as error:
        return [*seen[:2], f"raises {str(error)[:30]}"]
    return [*seen, *results, *(leaf.grad for leaf in leaves), torch.is_grad_enabled(), torch.get_rng_state().sum()]


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def cases(count: int) -> list[tuple[Any, ...]]:
    """Some of all combinations, the same in every run."""
    every = list(
        itertools.product(
            MAKES, MAKES, (False, True), (None, "no_grad", "recording"), range(len(ACTS)), MODES, (False, True)
        )
    )
    return random.Random(0).sample(every, count)


@pytest.mark.sampled(20)
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")
@pytest.mark.parametrize("part", a_part(range(20), 2))
def test_acting_on_results_is_as_in_eager(part: int) -> None:
    for first, second, broken, inside, act, around, inner in cases(400)[part::20]:
        framesmith.reset()  # all programs are one code object, whose entries are limited
        run = program(first, second, broken, inside)
        compiled = framesmith.compile(run)
        wanted = observed(run, ACTS[act], around, inner)
        for _ in range(2):
            found = observed(compiled, ACTS[act], around, inner)
            what = (first, second, broken, inside, ACTS[act].__name__, around, inner)
            assert same(wanted, found), (what, wanted, found)


def test_a_view_written_to_in_no_grad_is_read_as_it_is_then() -> None:
    def f(b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            b.mul_(3)
        return b * b

    found = []
    for run in (f, framesmith.compile(f, strict=True)):
        leaf = torch.ones(2, 3, requires_grad=True)
        b = (leaf * 1).t()
        result = run(b)
        b.retain_grad()
        result.sum().backward()
        found.append((b.grad, leaf.grad))
    torch.testing.assert_close(*found)


def without_gradients(of: Callable[[Any], Any], x: Any) -> Any:
    with torch.no_grad():
        return of(x)


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.detach().t(),
        lambda y: y.t().detach()[0],
        lambda y: y.detach(),
        lambda y: without_gradients(torch.t, y),
        lambda y: without_gradients(torch.t, y.detach()),
        lambda y: without_gradients(torch.Tensor.detach, y).t(),
    ],
)
@pytest.mark.parametrize("whole", [lambda x: x.sin(), lambda x: x])
def test_views_without_gradients_take_changes_with_a_history_where_eager_does(view: Any, whole: Any) -> None:
    def f(x: Any) -> Any:
        y = whole(x)
        return view(y), y.cos(), y

    framesmith.reset()
    outcomes = []
    for compiles in (False, True):
        x = torch.ones(2, 2, requires_grad=True) * 1
        shown, other, _ = (framesmith.compile(f, strict=True) if compiles else f)(x)
        try:
            outcomes.append(shown.mul_(other.sum()).requires_grad)
        except RuntimeError as error:
            outcomes.append(str(error)[:40])
    assert outcomes[0] == outcomes[1]


def test_zeros_without_memory_are_taken() -> None:
    x = torch.linspace(-1, 1, 3, requires_grad=True)
    [zeros] = torch.autograd.grad(x.sgn().sum(), x)
    assert zeros._is_zerotensor()
    compiled = framesmith.compile(lambda a, b: (a.sin() + b, a.sgn()))
    for _ in range(2):
        results = compiled(zeros, x)
        assert torch.equal(results[0], x)
        one, two = compiled(x, x)
        (one.sgn() + two).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3))


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


COPIES_OF_WHAT_HAS_GAPS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    _contiguous,
    lambda x: x[:2].contiguous(),
    lambda x: x.view(2, 1).contiguous(),
    lambda x: x.expand(3, 2)[1].contiguous(),
    lambda x: torch.as_strided(x, (2,), (3,), 1).contiguous(),
]


@pytest.mark.parametrize("backend", ["aot_eager", "auto"])
@pytest.mark.parametrize("copy", COPIES_OF_WHAT_HAS_GAPS)
def test_a_copy_of_an_input_with_gaps_is_none_of_it(copy: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    """Behind a write in place, too: the functional value has no gaps, and its `contiguous` would be itself."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(x)
        copied = copy(x)
        x[0] = 0
        return copied * 1, copied

    x, y = (torch.arange(1.0, 7).view(2, 3)[:, 1] for _ in range(2))
    expected, found = program(x), framesmith.compile(program, backend=backend, strict=True)(y)
    assert torch.equal(x, y)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    x.fill_(7)
    y.fill_(7)
    assert torch.equal(expected[1], found[1])


def _beside_a_leaf_view(x: torch.Tensor) -> list[torch.Tensor]:
    changed = x * 1
    with torch.no_grad():
        view = x.t()
    return [view * 1, changed, torch.addcdiv(x, changed, view, value=0.5)]


def test_what_is_kept_beside_a_view_taken_without_gradients() -> None:
    grads = []
    for function in (_beside_a_leaf_view, framesmith.compile(_beside_a_leaf_view, strict=True)):
        leaf = torch.full((3, 3), 2.0, requires_grad=True)
        results = function(leaf)
        assert all(one.requires_grad for one in results)
        with torch.no_grad():
            results[1].mul_(2)  # eager mode keeps it for the view's gradient alone, of which there is none
        _backward(results, [leaf], [])
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_a_view_taken_without_gradients_as_an_input() -> None:
    def program(view: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return view * 2 + (x * view).sin()

    compiled = framesmith.compile(program, strict=True)
    for function in (program, compiled):
        base, x = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)
        with torch.no_grad():
            view = base.t()
        function(view, x).sum().backward()
        assert base.grad is None and view.grad is None and x.grad is not None
        own = torch.ones(6)[:].view(3, 2).requires_grad_()  # a view that gets gradients
        function(own, x).sum().backward()
        torch.testing.assert_close(own.grad, 2 + torch.ones(3, 2).cos())


@pytest.mark.parametrize("around", MODES)
@pytest.mark.parametrize("uses", [
    lambda x, w: x.sum() * w, lambda x, w: (x + w).sin(), lambda x, w: torch.cat([x, w]), lambda x, w: x * w,
    lambda x, w: x.view(1, 3).sum(0) * w, lambda x, w: (x.sum() + 1, w * 2),
], ids=range(6))  # fmt: skip
def test_leaves_made_in_inference_mode(uses: Callable[..., Any], around: str) -> None:
    """Operators differ in whether they record a gradient of such a leaf."""

    def seen_of(run: Callable[..., Any]) -> list[Any]:
        with torch.inference_mode():
            x = torch.linspace(1, 2, 3).requires_grad_()
        w, seen = torch.linspace(0, 1, 3).requires_grad_(), list[Any]()
        x.register_hook(lambda grad: seen.append(grad.clone()))
        try:
            with MODES[around]():
                results = run(x, w)
            flat = results if isinstance(results, tuple) else (results,)
            seen += [(one.requires_grad, one.is_inference(), one.detach()) for one in flat]
            sum(one.sum() for one in flat if one.requires_grad).backward()
        except (RuntimeError, AttributeError) as error:
            seen.append(str(error)[:40])
        return [*seen, x.grad, w.grad]

    framesmith.reset()
    assert same(seen_of(framesmith.compile(uses, strict=True)), seen_of(uses))
