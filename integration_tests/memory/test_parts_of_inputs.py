"""Programs that write to parts of their inputs and read others, at random, forward and backward, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import framesmith
from integration_tests.harness.sweeps import LONG

Tensor = torch.Tensor
SHAPE = (3, 2, 4)
REFUSED = object()


@st.composite
def parts(draw: st.DrawFn) -> str:
    """Text that shows a part of a tensor of SHAPE."""
    return draw(st.sampled_from((
        "[0]", "[1]", "[-1]", "[0][1]", "[1][0]", "[1, :, 2:]", "[:, 1]", "[:, 1, 1:3]", "[..., ::2]", "[..., 1:]",
        "[1:]", "[1:][0]", ".unbind()[1]", ".unbind()[1][1]", ".transpose(0, 1)", ".transpose(0, 1)[1]",
        ".select(1, 0)[1:]", "", ".flatten()[3:9]", "[2:1]",
    )))  # fmt: skip


STATEMENTS = (
    "{target}.mul_(2)", "{target}.copy_({source}.sum())", "{target}.fill_(n)", "{target}.add_(w.sum())",
    "{target}.index_fill_(-1, i, n)", "{target}.copy_({source}.exp().mean())", "total = total + {source}.sin().sum()",
    "total = total + {source}.sum() * n", "kept.append({source} * 2)", "{target}.clamp_(-1, 1)", "n = n + 1",
    "kept.append({source}[..., :1].clone())", "x = y if n % 2 else x",
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(2, 7))):
        holder, other = draw(st.sampled_from("xxy")), draw(st.sampled_from("xxy"))
        target, source = holder + draw(parts()), other + draw(parts())
        lines.append(draw(st.sampled_from(STATEMENTS)).format(target=target, source=source))
    body = "\n    ".join(lines)
    return f"def program(x, y, w, i, n):\n    total, kept = 0, []\n    {body}\n    return total, kept\n"


def run(function: Any, training: bool) -> list[Any]:
    torch.manual_seed(0)
    whole = [torch.linspace(-1, 1, 48).reshape(2, *SHAPE) * sign for sign in (1, 2)]
    x, y = (one[1].clone() if training else one[1] for one in whole)  # eager mode refuses some changes of views
    w = torch.randn(3, requires_grad=training)
    held = [x, y, whole[0], whole[1]]
    try:
        with torch.set_grad_enabled(training):
            found = [*held, *held_results(function(x, y, w, torch.tensor([0, -1]), 2.0))]
    except (RuntimeError, IndexError) as error:
        return [type(error).__name__, *held]
    roots = [one for one in found if isinstance(one, Tensor) and one.grad_fn is not None]
    try:
        grads = torch.autograd.grad([root.sum() for root in roots], [w], allow_unused=True) if roots else (None,)
    except RuntimeError:  # eager mode notices what is changed after it was kept; compiled graphs keep what was there
        grads = (REFUSED,)
    return [*found, *grads]


def held_results(result: tuple[Any, list[Any]]) -> list[Any]:
    return [result[0], *result[1]]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@settings(max_examples=1500 if LONG else 40, deadline=None)
@given(text=programs())
def test_parts_of_inputs(training: bool, text: str) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, "<program>", "exec"), names)
    framesmith.reset()
    compiled = framesmith.compile(names["program"], strict=True)
    for _ in range(2):
        wanted, found = run(names["program"], training), run(compiled, training)
        if wanted[-1] is REFUSED and found[0] == "FramesmithError":  # raised when it is compiled, for it is strict
            continue
        assert len(wanted) == len(found), text
        for one, two in zip(wanted, found, strict=True):
            if one is REFUSED:
                continue
            if isinstance(one, Tensor):
                torch.testing.assert_close(
                    two.detach(),
                    one.detach(),
                    rtol=1e-3,
                    atol=1e-3,
                    equal_nan=True,
                    msg=lambda message: f"{text}\n{message}",
                )
            else:
                assert one == two, text


def steps(cache: Tensor, at: Tensor, rows: Tensor, which: Tensor) -> Any:
    cache[0].index_copy_(0, at, rows)
    seen = cache[0].sum(0)
    try:
        cache[1].index_copy_(0, at, rows[which] * 2)
    except IndexError:
        cache[1, 0].add_(1)
    cache[2].mul_(seen)
    return cache[1] @ rows.t(), rows[which]


@pytest.mark.parametrize("which", [[0, 1], [0, 2]], ids=["in range", "out of range"])
@pytest.mark.parametrize("at", [[1, 3], [1, 4]], ids=["in range", "out of range"])
def test_a_failure_between_writes_is_as_in_eager(which: list[int], at: list[int]) -> None:
    outcomes = []
    for function in (steps, framesmith.compile(steps, strict=True)):
        cache, rows = torch.linspace(-1, 1, 72).reshape(3, 4, 6), torch.linspace(1, 2, 12).reshape(2, 6)
        outcome: list[Any] = []
        for indices in ([1, 0], which):  # the first call compiles
            try:
                outcome += function(cache, torch.tensor(at), rows, torch.tensor(indices))
            except (IndexError, RuntimeError) as error:
                outcome.append(type(error))
            outcome.append(cache.clone())
        outcomes.append(outcome)
    for one, two in zip(*outcomes, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(two, one)
        else:
            assert one is two


def doubled_and_looked_around(x: Tensor) -> Tensor:
    x *= 2
    return torch.as_strided(x, (2, 2), (1, 1), 1) * 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_around_a_changed_input_is_seen(dynamic: bool | None) -> None:
    compiled = framesmith.compile(doubled_and_looked_around, dynamic=dynamic, strict=True)
    for begin in (3, 0, 2):
        one, two = torch.arange(8.0), torch.arange(8.0)
        assert torch.equal(compiled(two[begin:]), doubled_and_looked_around(one[begin:]))
        assert torch.equal(one, two)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_part_is_kept_while_another_part_of_the_same_tensor_changes(dynamic: bool) -> None:
    """The two share a count of versions and no memory."""

    def step(written: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        written.mul_(2)
        return (kept * weight * weight).exp()

    compiled = framesmith.compile(step, strict=True, dynamic=dynamic)
    for _ in range(2):
        found = []
        for function in (step, compiled):
            whole, weight = torch.arange(6.0).view(2, 3) / 6, torch.ones(3, requires_grad=True)
            result = function(whole[0], whole[1], weight)
            (grad,) = torch.autograd.grad(result.sum(), weight, create_graph=True)
            (second,) = torch.autograd.grad(grad.sum(), weight)
            found.append((whole, result.detach(), grad.detach(), second, whole._version))
        torch.testing.assert_close(found[1], found[0])


def made_in_no_grad(x):
    with torch.no_grad():
        return x[:3], x[3:]


READERS = {
    "the one changed": lambda parts: parts[0] * 2,
    "another": lambda parts: parts[1] * 3,
    "both, several results": lambda parts: (parts[0] * 3, parts[1].relu(), parts[0].sum() + parts[1].sum()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize("ways", [lambda x: x.chunk(2), lambda x: x.split([3, 2]), made_in_no_grad])
@pytest.mark.parametrize("reader", READERS)
def test_parts_that_nobody_may_change_are_changed_outside_autograd_when_they_have_been_read(reader, ways, through_data):
    def function(parts):
        result = READERS[reader](parts)
        if through_data:
            parts[0].detach().add_(1)
        else:
            with torch.no_grad():
                parts[0].add_(1)
        return result

    framesmith.reset()  # the function of each case is of the same code
    compiled = framesmith.compile(function, fullgraph=True, strict=True)
    if ways is made_in_no_grad:  # served by an entry that was compiled for others
        compiled((torch.ones(10, requires_grad=True).view(5, 2) * 1).split([3, 2]))
    for training in (True, False):
        found = []
        for call in (function, compiled):
            leaf = torch.linspace(-1, 1, 10).view(5, 2).requires_grad_(training)
            parts = ways(leaf * 1)
            results = call(parts)
            total = sum(result.sum() for result in (results if isinstance(results, tuple) else [results]))
            grads = torch.autograd.grad(total, leaf) if total.requires_grad and ways is not made_in_no_grad else ()
            found.append([total.detach(), *grads, *(part.detach().clone() for part in parts), parts[0]._version])
        torch.testing.assert_close(found[1], found[0])
