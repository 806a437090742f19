"""Properties of an input beside its sizes: its storage offset, whether it was made in inference mode.

Views by strides meet some of the ways to compile them; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framesmith
from integration_tests.harness.sweeps import in_turn

STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "from the first element of the storage": lambda x: x.as_strided((x.shape[0],), (1,), 0) * 3,
    "from a later one": lambda x: torch.as_strided(x, (2,), (2,), 1) * x.sum(),
    "from where the tensor begins": lambda x: x.as_strided((2,), (1,)).exp(),
    "of a part": lambda x: x[1:].as_strided((2,), (1,), 2).sin(),
    "of what is computed": lambda x: (x * 2).as_strided((2,), (1,), 1).sin(),
}


@pytest.mark.parametrize(
    ("name", "way"), in_turn(STRIDED, [*itertools.product([None, True, False], [False, True])], each=3)
)
def test_gradients_of_views_by_strides(name: str, way: tuple[bool | None, bool]) -> None:
    program, (dynamic, history) = STRIDED[name], way
    run = framesmith.compile(program, dynamic=dynamic, backend="aot_eager")
    for size, at in ((3, 1), (3, 2), (3, 0), (4, 1), (5, 0), (5, 3)):
        seen = []
        for call in (program, run):
            memory = torch.arange(24.0) / 24
            leaf = memory[at : at + 2 * size : 2].detach().requires_grad_()
            if history:
                leaf = memory.clone().requires_grad_()
            result = call(leaf[at : at + 2 * size : 2] if history else leaf)
            (result * torch.arange(1.0, 1 + result.numel())).sum().backward()
            seen.append((result.detach(), leaf.grad))
        for one, two in zip(*seen, strict=True):
            torch.testing.assert_close(one, two)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "way"),
    in_turn(STRIDED, [*itertools.product([False, True], [None, True, False], ["auto", "aot_eager"])], each=5),
)
def test_views_by_strides_without_gradients(name: str, way: tuple[bool, bool | None, str]) -> None:
    writes, dynamic, backend = way

    def program(x: torch.Tensor) -> Any:
        view = x.as_strided((2,), (1,), 1)
        if writes:
            view.add_(1)
        return STRIDED[name](x), x * 1, view

    run = framesmith.compile(program, dynamic=dynamic, backend=backend)
    for size, at in ((3, 1), (3, 2), (3, 0), (4, 1), (5, 0), (5, 3)):
        seen = []
        for call in (program, run):
            memory = torch.arange(24.0) / 24
            seen.append((*call(memory[at : at + 2 * size : 2]), memory))
        for one, two in zip(*seen, strict=True):
            torch.testing.assert_close(one, two)
            assert (one.stride(), one.storage_offset()) == (two.stride(), two.storage_offset())


WIDER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "complex": torch.view_as_complex,
    "complex of a part": lambda x: torch.view_as_complex(x[..., :2].contiguous()),
    "integers": lambda x: x.view(torch.int64),
    "integers of a row": lambda x: x[0].view(torch.int64),
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", WIDER)
def test_wider_elements_that_nobody_reads_begin_where_they_can(name: str, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        changed.add_(1)
        WIDER[name](x)
        return x * 2

    framesmith.reset()  # one code for all of them
    run = framesmith.compile(program, dynamic=dynamic)
    for size, at in ((3, 0), (3, 2), (3, 1), (5, 3), (4, 4), (4, 7)):
        seen = []
        for call in (program, run):
            changed = torch.zeros(2)
            try:
                given: Any = call(torch.arange(24.0)[at : at + 2 * size].view(size, 2), changed).tolist()
            except RuntimeError as error:
                given = str(error).splitlines()[0]
            seen.append((given, changed.tolist()))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("strides", [(1, 1), (1, 0), (0, 0), (3, 2)])
def test_a_change_of_no_elements_keeps_strides(strides: tuple[int, int], dynamic: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        x.add_(2)
        made = x * 1
        return made, made[..., :2].contiguous(), x.clone()

    run = framesmith.compile(program, dynamic=dynamic)
    for columns in (4, 5):
        found = [call(torch.ones(16).as_strided((0, columns), strides)) for call in (program, run)]
        assert [one.stride() for one in found[0]] == [one.stride() for one in found[1]]


def changed_beside(made: torch.Tensor, other: torch.Tensor, w: torch.Tensor) -> Any:
    result = made @ w
    other.cumsum_(0)
    return result, other


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_tensor_of_inference_mode_beside_one_that_is_changed(dynamic: bool | None, autocast: bool) -> None:
    run = framesmith.compile(changed_beside, dynamic=dynamic, backend="aot_eager")
    for size in (2, 3, 5):
        seen: list[Any] = []
        for call in (changed_beside, run):
            torch.manual_seed(0)
            with torch.inference_mode():
                made = torch.randn(size)
            other, w = torch.randn(size, 2), torch.randn(size, size, requires_grad=True)
            try:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    results = call(made, other, w)
                results[0].float().sum().backward()
                seen.append([*(one.detach() for one in results), w.grad])
            except RuntimeError as error:
                seen.append([str(error)[:40], other])
        for one, two in zip(*seen, strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(one, two)
            else:
                assert one == two


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["auto", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.nonzero() * 1,
        lambda x: (x.argwhere(), torch.nonzero(x) + 2),
        lambda x: torch.argwhere(x > 0).float().sin(),
        lambda x: x[x > 0.5] * 2,
    ],
)
def test_indexing_of_what_is_not_contiguous_has_eagers_layout(
    program: Callable[[torch.Tensor], Any], backend: str, dynamic: bool | None
) -> None:
    run = framesmith.compile(program, dynamic=dynamic, backend=backend)
    whole = torch.arange(60.0).view(3, 4, 5) % 7
    parts = [whole[0], whole[0].t(), whole[:, :, 1], whole.permute(2, 0, 1), whole[0] * 0, whole[2].t(), whole[:, 1]]
    for part in [*parts, torch.arange(4.0).as_strided((2, 2), (1, 1))]:
        both = [found if isinstance(found, tuple) else (found,) for found in (run(part), program(part))]
        for one, two in zip(*both, strict=True):
            torch.testing.assert_close(one, two)
            assert one.stride() == two.stride() or not one.numel()  # where nothing lies no address depends on them


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda v: v,
    "a row": lambda v: v[0],
    "a piece": lambda v: v.chunk(2, -2)[0],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PARTS)
def test_the_data_of_inference_tensors_can_be_changed(name: str, dynamic: bool | None) -> None:
    part = PARTS[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            v = x * 1
        part(v).data.mul_(2)
        return v.clone()

    framesmith.reset()
    run = framesmith.compile(program, dynamic=dynamic)
    for rows in (2, 4):
        assert torch.equal(run(torch.ones(rows, 3)), program(torch.ones(rows, 3)))


CHANGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "filled": lambda x: x.zero_() * 2,
    "scaled": lambda x: x.mul_(2).sin(),
    "its first row": lambda x: x[:1].add_(1).sum() + x,
    "written over": lambda x: x.copy_(x * 2).reshape(-1),
    "returned": lambda x: x.add_(1),
}

VIEWED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda y: y * 1,
    "its first column": lambda y: y[:, :1],
    "its first row": lambda y: y[:1],
    "turned": lambda y: y.t(),
    "every second": lambda y: y[..., ::2],
    "within another": lambda y: y.unsqueeze(0),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("view", VIEWED)
def test_changes_of_views_of_hardly_any_elements(view: str, name: str) -> None:
    """A view's strides along one element, or none, are not determined by memory: they are those of the input."""
    for rows, columns in ((0, 3), (1, 4), (4, 1), (1, 1), (2, 3)):
        framesmith.reset()
        seen = []
        for run in (CHANGED[name], framesmith.compile(CHANGED[name], dynamic=True, strict=True)):
            leaf = torch.arange(float(rows * columns)).view(rows, columns).requires_grad_()
            viewed = VIEWED[view](leaf * 1)
            result = run(viewed)
            seen.append((result, viewed, *torch.autograd.grad(result.sum(), leaf)))
        for eager, compiled in zip(*seen, strict=True):
            torch.testing.assert_close(compiled, eager)
