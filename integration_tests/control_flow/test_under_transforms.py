"""Control flow under `torch.vmap`, and associative scans under all transforms, in compiled functions.

References call it for each example: torch refuses much of this in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import framesmith
from integration_tests.transforms.transforms import Tensor, outcome, plain, run, t

pytestmark = pytest.mark.usefixtures("fresh")


def chosen(row: Tensor) -> Any:
    return torch.cond(row.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos() + a, (row,))


def either(row: Tensor) -> Any:
    return row.sin() * 2 if row.sum() > 0 else row.cos() + row


def multiplied(x: Tensor, dim: int = 0, reverse: bool = False) -> Any:
    return associative_scan(lambda a, b: a * b, x, dim, reverse=reverse, combine_mode="generic")


def cumprod(x: Tensor, dim: int = 0, reverse: bool = False) -> Any:
    return x.flip(dim).cumprod(dim).flip(dim) if reverse else x.cumprod(dim)


def stepped(init: Tensor, row: Tensor) -> Any:
    return scan(lambda c, a: (c + a, (c * a).sin()), init, row)


def steps(init: Tensor, row: Tensor) -> Any:
    carried, given = init, []
    for one in row.unbind():
        given.append((carried * one).sin())
        carried = carried + one
    return carried, torch.stack(given)


def each(function: Callable[..., Any], *batches: Tensor) -> Any:
    """Return what vmap of a function gives, by a loop."""
    found = [function(*one) for one in zip(*batches, strict=True)]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(one) for one in zip(*found, strict=True))
    return torch.stack(found)


def shared(x: Tensor) -> Any:
    condition, weight = x.sum() > 0, x.sum(0)
    branches = (lambda a: a.sin() * weight), (lambda a: a.cos() + weight)
    return vmap(lambda row: torch.cond(condition, *branches, (row,)))(x)


def shared_by_hand(x: Tensor) -> Any:
    return x.sin() * x.sum(0) if x.sum() > 0 else x.cos() + x.sum(0)


def shared_by_one_branch(x: Tensor) -> Any:
    condition, weight = x.sum() > 0, x.sum(0)
    return vmap(lambda row: torch.cond(condition, lambda: row.sin(), lambda: weight * 2))(x)


def shared_by_one_branch_by_hand(x: Tensor) -> Any:
    return x.sin() if x.sum() > 0 else (x.sum(0) * 2).expand(3, 4).contiguous()


def pairs(x: Tensor) -> Any:
    def join(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    return vmap(lambda row: associative_scan(join, (row, row.cos()), 0, combine_mode="generic")[1])(x)


def pairs_by_hand(x: Tensor) -> Any:
    state, found = torch.zeros(x.shape[0]), []
    for at in range(x.shape[1]):
        state = state * x[:, at] + x.cos()[:, at] if at else x.cos()[:, 0]
        found.append(state)
    return torch.stack(found, 1)


#: A program, and the same without control flow.
PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "cond": (vmap(chosen), lambda x: each(either, x)),
    "cond, a shared condition": (shared, shared_by_hand),
    "cond, one branch of batches": (shared_by_one_branch, shared_by_one_branch_by_hand),
    "cond twice": (vmap(vmap(chosen)), lambda x: torch.where(x > 0, x.sin() * 2, x.cos() + x)),
    "cond of another dimension": (vmap(chosen, 1, 1), lambda x: each(either, x.t()).t()),
    "scan": (lambda x: vmap(stepped)(x[:, 0], x), lambda x: each(steps, x[:, 0], x)),
    "scan, shared init": (
        lambda x: vmap(stepped, (None, 0))(x.sum(), x),
        lambda x: each(lambda row: steps(x.sum(), row), x),
    ),
    "scan, captured": (
        lambda x: vmap(lambda row: scan(lambda c, a: (c * row.sum(), c + a), row[0], x[0]))(x)[1],
        lambda x: each(
            lambda row: torch.stack([row[0] * row.sum() ** at + one for at, one in enumerate(x[0].unbind())]), x
        ),
    ),
    "map": (vmap(lambda row: mapped(lambda a: a.sin() * 2, row)), lambda x: x.sin() * 2),
    "associative scan": (vmap(multiplied), lambda x: cumprod(x, 1)),
    "associative scan, reversed": (
        lambda x: vmap(lambda row: multiplied(row, 1, True))(x.reshape(3, 2, 2)),
        lambda x: cumprod(x.reshape(3, 2, 2), 2, True),
    ),
    "associative scan of pairs": (pairs, pairs_by_hand),
    "associative scan, grad": (grad(lambda x: multiplied(x).sum()), grad(lambda x: cumprod(x).sum())),
    "associative scan, vjp": (lambda x: vjp(multiplied, x)[1](x.cos()), lambda x: vjp(cumprod, x)[1](x.cos())),
    "associative scan, jvp": (lambda x: jvp(multiplied, (x,), (x.cos(),)), lambda x: jvp(cumprod, (x,), (x.cos(),))),
    "associative scan, jacrev": (lambda x: jacrev(multiplied)(x), lambda x: jacrev(cumprod)(x)),
    "associative scan, jacfwd": (lambda x: jacfwd(multiplied)(x[0]), lambda x: jacfwd(cumprod)(x[0])),
    "associative scan, hessian": (
        lambda x: hessian(lambda y: multiplied(y).sum())(x[0]),
        lambda x: hessian(lambda y: cumprod(y).sum())(x[0]),
    ),
    "associative scan, gradients of examples": (
        vmap(grad(lambda row: multiplied(row).sum())),
        vmap(grad(lambda row: cumprod(row).sum())),
    ),
}


def layouts_aside(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Return the function with contiguous results: by hand, they may be laid out in another way."""

    def contiguous(x: Tensor) -> Any:
        found = function(x)
        return tuple(one.contiguous() for one in found) if isinstance(found, tuple) else found.contiguous()

    return contiguous


@pytest.mark.parametrize("make", [plain, t], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, make: Callable[..., Tensor]) -> None:
    function, by_hand = map(layouts_aside, PROGRAMS[name])
    run((function, [(make(3, 4),), (make(3, 4),)]), by_hand)
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0)


@pytest.mark.parametrize("name", ["cond", "cond, a shared condition", "scan", "scan, shared init", "map"])
def test_dynamic_sizes(name: str) -> None:
    function, by_hand = map(layouts_aside, PROGRAMS[name])
    run((function, [(t(size, 4),) for size in (3, 5, 2)]), by_hand, dynamic=True)


@pytest.mark.parametrize("length", range(1, 10))
def test_associative_scans_of_each_length(length: int) -> None:
    run((vmap(multiplied), [(plain(2, length),)]), lambda x: cumprod(x, 1))


def test_torch_gives_the_same_where_it_takes_the_call() -> None:
    x = plain(3, 4)
    for name in ("cond", "associative scan", "associative scan of pairs", "associative scan, gradients of examples"):
        function, _ = PROGRAMS[name]
        torch.testing.assert_close(framesmith.compile(function, fullgraph=True)(x), function(x))


def raises(row: Tensor) -> Any:
    def branch(a: Tensor) -> Tensor:
        raise ValueError("mine")

    return torch.cond(row.sum() > 0, branch, lambda a: a, (row,))


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "cond under grad": grad(lambda x: chosen(x).sum()),
    "cond under jvp": lambda x: jvp(chosen, (x,), (x,)),
    "gradients of cond of examples": vmap(grad(lambda row: chosen(row).sum())),
    "scan under grad": grad(lambda x: stepped(x[0], x)[0].sum()),
    "pointwise": vmap(lambda row: associative_scan(lambda a, b: a * b, row, 0)),
    "a body that raises": vmap(raises),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(Exception, match="fullgraph=True"):
        framesmith.compile(REFUSED[name], fullgraph=True)(plain(3, 4))
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_a_body_that_raises_leaves_no_state() -> None:
    function = vmap(raises)
    compiled = framesmith.compile(function)
    for _ in range(2):
        assert outcome(compiled, torch.ones(3, 4))[0][0] is outcome(function, torch.ones(3, 4))[0][0]
    run((vmap(chosen), [(plain(3, 4),)]), lambda x: each(either, x))
