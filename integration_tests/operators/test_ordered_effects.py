"""Operators with effects outside of tensors: once each, in the program's order, beside operations that may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import framesmith
from integration_tests.programs.operators.library import SEEN

OPS = torch.ops.programs
Tensor = torch.Tensor
X = torch.linspace(-1, 2, 8)
#: The changes that programs make themselves.
STATE: dict[str, Any] = {}
LATER: dict[str, Any] = {}
GOOD, BAD = torch.tensor([0, 1]), torch.tensor([0, 9])


@torch.library.custom_op("ordered::refuse_nine", mutates_args=())
def refuse_nine(index: Tensor) -> None:
    SEEN.append("refuse")
    if index[1] == 9:
        raise ValueError("nine")


refuse_nine.register_fake(lambda index: None)


@torch.library.custom_op("ordered::modes", mutates_args=())
def note_modes(x: Tensor) -> None:
    SEEN.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))


note_modes.register_fake(lambda x: None)


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    framesmith.reset()
    yield
    clear()


def around(x: Tensor, index: Tensor) -> Any:
    OPS.log(x, "before")
    y = x[index]
    OPS.log(y, "behind")
    return y * 2


def by_name(x: Tensor, index: Tensor) -> Any:
    y = x.sin()
    OPS.log(x=y, tag="first")
    z = y[index]
    OPS.log(z, tag="second")
    OPS.log(y, "third")
    return z


def between_side_effects(x: Tensor, index: Tensor) -> Any:
    done = [1]
    OPS.log(x, "first")
    STATE["before"] = len(done)
    y = x[index]
    done.append(2)
    OPS.log(y, "second")
    LATER["behind"] = done
    return y


def without_gradients(x: Tensor, index: Tensor) -> Any:
    with torch.no_grad():
        OPS.log(x, "log")
        y = x[index]
    return y + x.sum()


def called(x: Tensor, index: Tensor) -> Any:
    def inner(y: Tensor) -> Tensor:
        OPS.log(y, "inner")
        return y.exp()

    return inner(x)[index] + inner(x * 2)[index]


def renamed(x: Tensor, index: Tensor) -> Any:
    """The object goes on with other data."""
    y = x.detach() * 2
    OPS.log(y, "old")
    y.data = torch.zeros_like(x)
    OPS.log(y, "new")
    return (x + y)[index]


def stored(x: Tensor, index: Tensor) -> Any:
    y = x.cos()
    OPS.log(y, "kept")
    y.register_hook(lambda g: SEEN.append("hook"))
    return y[index]


WHOLE = [around, by_name, between_side_effects, without_gradients, called, renamed, stored]


def changed(x: Tensor, index: Tensor) -> Any:
    y = x * 2
    OPS.log(y, "old")
    y.add_(1)
    OPS.log(y, "new")
    return y[index]


def input_changed(x: Tensor, index: Tensor) -> Any:
    y = x.detach()
    OPS.log(x * 2, "first")
    y.mul_(3)
    OPS.log(y, "second")
    return x[index]


def changed_again(x: Tensor, index: Tensor) -> Any:
    """One dict, and a list that it holds, change on both sides of a call."""
    STATE["list"] = made = [1]
    OPS.log(x, "first")
    made.append(2)
    y = x[index]
    OPS.log(y, "second")
    STATE["list"] = 3
    return y


def caught(x: Tensor, index: Tensor) -> Any:
    try:
        OPS.log(x, "tried")
        y = x[index]
    except IndexError:
        OPS.log(x, "caught")
        y = x * 3
    finally:
        OPS.log(x, "finally")
    return y


def in_a_branch(x: Tensor, index: Tensor) -> Any:
    def true(x: Tensor) -> Tensor:
        OPS.log(x, "true")
        return x * 2

    return torch.cond(x.sum() > 100, true, lambda x: x * 3, (x,))[index]


def in_a_checkpoint(x: Tensor, index: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        OPS.log(x, "checkpoint")
        return x.sin()

    return checkpoint(function, x, use_reentrant=False)[index]


class Swallows:
    """Notes where it is entered and left, and drops errors."""

    def __enter__(self) -> None:
        SEEN.append("entered")

    def __exit__(self, *error: object) -> bool:
        SEEN.append("left")
        return True


def raised(x: Tensor, index: Tensor) -> Any:
    """The operator itself raises."""
    try:
        refuse_nine(index)
        OPS.log(x, "tried")
    except ValueError:
        return x * 3
    return x * 2


def raised_inside(x: Tensor, index: Tensor) -> Any:
    def inner(y: Tensor) -> Tensor:
        OPS.log(y, "inside")
        refuse_nine(index)
        return y.sin()

    try:
        return inner(x) * 2
    except ValueError:
        return x * 3


def in_a_block(x: Tensor, index: Tensor) -> Any:
    with Swallows():
        OPS.log(x, "first")
        refuse_nine(index)
        OPS.log(x, "second")
    return x * 2


def in_a_block_behind_a_break(x: Tensor, index: Tensor) -> Any:
    with Swallows():
        torch._dynamo.graph_break()
        refuse_nine(index)
        OPS.log(x, "inside")
    return x * 2


def before_a_branch(x: Tensor, index: Tensor) -> Any:
    def true(x: Tensor) -> Tensor:
        OPS.log(x, "true")
        return x * 2

    OPS.log(x, "before")
    y = torch.cond(x.sum() > -100, true, lambda x: x * 3, (x,))
    OPS.log(y, "behind")
    return y


def clear() -> None:
    for one in (SEEN, STATE, LATER):
        one.clear()  # type: ignore[attr-defined]


BROKEN = [
    changed, input_changed, changed_again, caught, in_a_branch, in_a_checkpoint,
    raised, raised_inside, in_a_block, in_a_block_behind_a_break, before_a_branch,
]  # fmt: skip


def outcome(function: Callable[..., Any], index: Tensor, *, gradient: bool) -> list[Any]:
    clear()
    x = X.clone().requires_grad_(gradient)
    try:
        result = function(x, index)
    except Exception as error:
        return [[type(error), *_noted(), dict(STATE), dict(LATER)]]
    if result.requires_grad:
        result.sum().backward()
    return [[*_noted(), dict(STATE), dict(LATER)], result.detach(), x.grad]


def _noted() -> list[Any]:
    """Return what the operators noted, with sums as far as their order does not matter."""
    return [(one[0], round(one[1], 4)) if isinstance(one, tuple) else one for one in SEEN]


def check(function: Callable[..., Any], backend: str) -> None:
    options: Any = {} if backend == "default" else {"backend": backend}
    compiled = framesmith.compile(function, strict=True, **options)
    for gradient in (False, True) if function is not stored else (True,):
        for index in (GOOD, BAD, GOOD):
            got, want = outcome(compiled, index, gradient=gradient), outcome(function, index, gradient=gradient)
            torch.testing.assert_close(got[1:], want[1:])
            assert got[0] == want[0]


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("function", WHOLE, ids=lambda function: function.__name__)
def test_in_one_graph_with_what_may_fail(function: Callable[..., Any], backend: str) -> None:
    check(function, backend)
    assert framesmith.stats()["breaks"] == 0


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize(
    "function",
    [changed, input_changed, changed_again, caught, in_a_branch, in_a_checkpoint],
    ids=lambda function: function.__name__,
)
def test_order_is_kept_by_breaks(function: Callable[..., Any], backend: str) -> None:
    check(function, backend)


def test_registered_effects_do_not_share_a_graph_with_what_may_fail() -> None:
    """The operator returns a value; without the registration it would run again."""

    @torch.library.custom_op("ordered::drawn", mutates_args=())
    def drawn(x: Tensor) -> Tensor:
        SEEN.append("drawn")
        return x.clone()

    drawn.register_fake(torch.empty_like)
    if not hasattr(drawn, "register_effect"):
        pytest.skip("this torch registers no effects")
    from torch._library.effects import EffectType

    drawn.register_effect(EffectType.ORDERED)

    def function(x: Tensor, index: Tensor) -> Tensor:
        return drawn(x.detach())[index]

    check(function, "default")


def test_its_own_error_leaves_the_frame() -> None:
    """The calls before it are done, once, and nothing that follows."""

    @torch.library.custom_op("ordered::refuse", mutates_args=())
    def refuse(x: Tensor) -> None:
        if x.sum() > 0:
            raise ValueError("positive")

    refuse.register_fake(lambda x: None)

    def function(x: Tensor) -> Tensor:
        STATE["first"] = True
        OPS.log(x, "second")
        refuse(x)
        LATER["third"] = True
        return x * 2

    compiled = framesmith.compile(function, strict=True, fullgraph=True)
    for x in (-torch.ones(2), torch.ones(2)):
        seen = []
        for call in (compiled, function):
            clear()
            try:
                call(x)
            except ValueError as error:
                SEEN.append(str(error))
            seen.append([*SEEN, dict(STATE), dict(LATER)])
        assert seen[0] == seen[1]


def test_in_the_modes_of_their_lines() -> None:
    def function(x: Tensor) -> Tensor:
        note_modes(x)
        with torch.no_grad():
            note_modes(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            note_modes(x)
        note_modes(x)
        return x * 2

    compiled = framesmith.compile(function, strict=True, fullgraph=True)
    for around in (torch.enable_grad, torch.no_grad):
        seen = []
        for call in (compiled, function):
            clear()
            with around():
                call(X)
                seen.append([*SEEN, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")])
        assert seen[0] == seen[1]


def test_weights_cast_for_one_call_are_not_cast_weights_of_the_next() -> None:
    """The weight changes between calls; autocast's cache must not hold what it was."""
    weight = torch.nn.Parameter(torch.eye(2))

    @torch.library.custom_op("ordered::multiply", mutates_args=())
    def multiply(x: Tensor) -> None:
        SEEN.append((x @ weight).sum().item())

    multiply.register_fake(lambda x: None)

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            multiply(x)
        return x * 2

    compiled = framesmith.compile(function, strict=True, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(1, 2))
        with torch.no_grad():
            weight.mul_(2)
    assert SEEN == [2, 4, 8]
