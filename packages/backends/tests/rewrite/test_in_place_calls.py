"""Calls that write to an input in place of a copy at the end, wherever no result differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs.tracing import mutating
from torch import fx

from framesmith_aten.operators import in_place_form
from framesmith_backends import CpuBackend
from framesmith_backends.rewrite.in_place_calls import why_not_in_place, with_calls_in_place

Tensor = torch.Tensor
aten = torch.ops.aten
copy = aten.copy_.default


def mutating_first(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The graph of the function, whose first result is copied onto the first input at the end."""
    return mutating(function, inputs, [0])


def reason(gm: fx.GraphModule) -> str | None:
    [write] = gm.graph.find_nodes(op="call_function", target=copy)
    return why_not_in_place(write)


def check(gm: fx.GraphModule, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Runs the graph as kernels and as it is, compares results and inputs, and gives the inputs."""
    plain, compiled = ([x.clone() for x in inputs] for _ in range(2))
    wanted = gm(*plain)
    found = CpuBackend().compile(gm, inputs)(list(compiled))
    for one, two in zip([*found, *compiled], [*wanted, *plain], strict=True):
        torch.testing.assert_close(one, two)
        assert one.stride() == two.stride()
    return compiled


CACHE, NEW, AT = torch.linspace(-1, 1, 24).reshape(4, 6), torch.full((2, 6), 5.0), torch.tensor([1, 3])

REPEATABLE: dict[str, Callable[..., Any]] = {
    "index_copy": lambda c, n, i: (v := c.index_copy(0, i, n), v * 2),
    "index_put": lambda c, n, i: (v := c.index_put((i,), n), v.sum(0)),
    "index_fill": lambda c, n, i: (v := c.index_fill(0, i, 3.0), v.t() + 1),
    "scatter": lambda c, n, i: (v := c.scatter(0, i[:, None].expand(2, 6), n), v.exp()),
    "of what is computed": lambda c, n, i: (v := c.index_copy(0, i + 0, n.exp()), v[1:] @ n.t()),
}


@pytest.mark.parametrize("name", REPEATABLE)
def test_calls_that_may_be_repeated_write_to_the_input(name: str) -> None:
    inputs = [CACHE, NEW, AT]
    gm = mutating_first(REPEATABLE[name], inputs)
    assert reason(gm) is None
    targets = [node.target for node in with_calls_in_place(gm).graph.nodes]
    assert copy not in targets and any(str(target).split(".")[1].endswith("_") for target in targets[3:-1])
    check(gm, inputs)
    assert copy in [node.target for node in gm.graph.nodes]  # the graph given is left as it was


DECLINED: dict[str, tuple[str, Callable[..., Any]]] = {
    "added up": ("repeated", lambda c, n, i: (c.index_add(0, i, n),)),
    "accumulated": ("repeated", lambda c, n, i: (c.index_put((i,), n, accumulate=True),)),
    "the input is read": ("read elsewhere", lambda c, n, i: (c.index_copy(0, i, n), c * 2)),
    "the input is read twice": ("read elsewhere", lambda c, n, i: (c.index_copy(0, i, c[:2]),)),
    "given back": ("one of the graph's", lambda c, n, i: (v := c.index_copy(0, i, n), v)),
    "a view given back": ("one of the graph's", lambda c, n, i: (v := c.index_copy(0, i, n), v.t())),
    "a kernel's": ("not be repeated", lambda c, n, i: (c * 2,)),
    "of another tensor": ("no form", lambda c, n, i: ((c + 1).index_copy(0, i, n),)),
}


@pytest.mark.parametrize("name", DECLINED)
def test_updates_that_results_show_stay_copies(name: str) -> None:
    words, function = DECLINED[name]
    inputs = [CACHE, NEW, AT]
    gm = mutating_first(function, inputs)
    found = reason(gm)
    assert found is not None and words in found
    assert with_calls_in_place(gm) is gm
    check(gm, inputs)


def test_another_layout_is_copied() -> None:
    gm = mutating_first(lambda c, n, i: (c.index_copy(0, i, n),), [CACHE, NEW, AT])
    [call] = gm.graph.find_nodes(op="call_function", target=aten.index_copy.default)
    call.meta["val"] = call.meta["val"].t().contiguous().t()
    assert reason(gm) == "the result is laid out in another way"


def test_earlier_calls_run_before_and_a_failure_leaves_a_usable_input() -> None:
    def run(c: Tensor, n: Tensor, i: Tensor, j: Tensor) -> Any:
        before = n[j]
        changed = c.index_copy(0, i, n)
        return changed, before, changed[j]

    inputs = [CACHE, NEW, AT, torch.tensor([0, 1])]
    gm = mutating_first(run, inputs)
    check(gm, inputs)
    compiled = CpuBackend().compile(gm, inputs)
    cache = CACHE.clone()
    with pytest.raises(IndexError):
        compiled([cache, NEW, AT, torch.tensor([0, 2])])
    assert torch.equal(cache, CACHE)  # `n[j]` failed before
    with pytest.raises(IndexError):
        compiled([cache, NEW, AT + 7, torch.tensor([0, 1])])
    compiled([cache, NEW, AT, torch.tensor([0, 1])])
    assert torch.equal(cache, CACHE.index_copy(0, AT, NEW))


def test_variants_are_found_by_schema() -> None:
    assert in_place_form(aten.index_copy.default) is aten.index_copy_.default
    assert in_place_form(aten.scatter.value) is aten.scatter_.value
    assert in_place_form(aten.index_copy_.default) is None
    assert in_place_form(aten.mm.default) is None
