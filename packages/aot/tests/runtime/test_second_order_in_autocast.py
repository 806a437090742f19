"""Second derivatives under autocast, which caches casts of weights: several operations read one cast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of
from torch import fx
from torch.amp import autocast_mode

pytestmark = pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")


def two_results(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w, b), F.linear(x + 1, w, b)


def one_after_the_other(x: Any, w: Any, b: Any) -> Any:
    return (F.linear(F.linear(x, w, b).tanh(), w, b),)


def three_matmuls(x: Any, w: Any, b: Any) -> Any:
    return x @ w, x.t() @ w, (w @ x).float() * b


def read_as_it_is_too(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w), w * 2, (F.linear(x.sin(), w).float() + b).exp()


PROGRAMS = [two_results, one_after_the_other, three_matmuls, read_as_it_is_too]


def entering(gm: fx.GraphModule) -> fx.GraphModule:
    """Return the graph within an autocast block of its own."""
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    with gm.graph.inserting_before(first):
        token = gm.graph.call_function(autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, True))
    with gm.graph.inserting_before(next(iter(reversed(gm.graph.nodes)))):
        gm.graph.call_function(autocast_mode._exit_autocast, (token,))
    gm.recompile()
    return gm


@contextmanager
def autocast_around(cache: bool) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
        yield


def inputs(history: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    leaves = [(torch.randn(*size) / 2).requires_grad_() for size in ((4, 4), (4, 4), (4,))]
    return leaves, [leaf * 1 for leaf in leaves] if history else leaves


def passes(run: Callable[..., Any], history: bool, cache: bool, frozen: bool) -> list[Any]:
    """Return the results of two passes, the third derivatives, and the number of calls of hooks on leaves."""
    leaves, values = inputs(history)
    called: list[int] = []
    for at, leaf in enumerate(leaves):
        leaf.register_hook(lambda grad, at=at: called.append(at))
    with autocast_around(cache):
        results = run(*values)
    loss = sum(one.float().pow(2).sum() for one in results)
    if frozen and not history:
        leaves[1].requires_grad_(False)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    grads = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
    sums = [grad.sin().sum() for grad in grads if grad is not None]
    seconds = torch.autograd.grad(sum(sums), wanted, create_graph=True, allow_unused=True)
    sum(grad.sum() for grad in seconds if grad is not None).backward()
    return [*grads, *seconds, *[leaf.grad for leaf in leaves], sorted(called)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("history", "cache", "frozen"), [(0, 1, 0), (1, 1, 0), (0, 0, 0), (0, 1, 1)])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_two_passes_are_those_of_eager(
    program: Callable[..., Any], inside: bool, history: int, cache: int, frozen: int
) -> None:
    gm = entering(graph_of(program)) if inside else graph_of(program)
    with autocast_around(bool(cache)):
        run = compiled(gm, inputs(bool(history))[1])
    expected = passes(gm, bool(history), bool(cache), bool(frozen))
    for _ in range(2):
        found = passes(run, bool(history), bool(cache), bool(frozen))
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            if isinstance(two, torch.Tensor):
                torch.testing.assert_close(one, two, rtol=0, atol=0.05 * float(two.abs().max()))  # bfloat16 below
            else:
                assert one == two


def in_autocast(x: Any, w: Any) -> Any:
    return (F.linear(x, w),)


def by_hand(x: Any, w: Any) -> Any:
    return ((x.bfloat16() @ w.bfloat16()).float(),)


def to_a_wider_type(x: Any, w: Any) -> Any:
    return (x.double() @ w.double(),)


@pytest.mark.parametrize("changed", ["x", "w", "both"])
@pytest.mark.parametrize("kind", ["plain", "leaf", "inner", "shown twice"])
@pytest.mark.parametrize("program", [in_autocast, by_hand, to_a_wider_type], ids=lambda program: program.__name__)
def test_a_tensor_saved_as_a_cast_may_be_mutated(program: Callable[..., Any], kind: str, changed: str) -> None:
    """By an optimizer's step, or a buffer that is filled again, between the graph and second derivatives."""
    found: list[Any] = []
    for compiles in (False, True):
        torch.manual_seed(0)
        source = (torch.randn(4, 1) if kind == "shown twice" else torch.randn(4, 4).t()) / 2
        leaves = [source.requires_grad_(kind != "plain"), (torch.randn(4, 4) / 2).requires_grad_()]
        x = leaves[0] * 1 if kind == "inner" else leaves[0].expand(4, 4) if kind == "shown twice" else leaves[0]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        with torch.autocast("cpu", torch.bfloat16, enabled=program is in_autocast):
            [result] = (compiled(graph_of(program), [x, leaves[1]]) if compiles else program)(x, leaves[1])
        with torch.no_grad():
            if changed != "w":
                source.add_(3)
                torch.autograd.graph.increment_version(x)
            if changed != "x":
                leaves[1].add_(3)
        grads = torch.autograd.grad(result.float().square().sum(), wanted, create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()
        found.append([*grads, *[leaf.grad for leaf in wanted]])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0.02 * float(two.detach().abs().max()))  # bfloat16


def test_casts_of_the_replay_are_not_cached() -> None:
    leaves, values = inputs(False)
    with autocast_around(True):
        run = compiled(graph_of(two_results), values)
        results = run(*values)
    loss = sum(one.float().pow(2).sum() for one in results)
    torch.autograd.grad(loss, leaves, create_graph=True)
    with torch.no_grad():
        leaves[1].zero_()
    with autocast_around(True):
        assert not torch.mm(leaves[0], leaves[1]).any()
