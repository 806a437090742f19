"""Torch's rules for operators on symbolic sizes, used where C++ would read a size and no program can observe it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._decomp import decompositions
from torch._dispatch.python import enable_python_dispatcher

from framesmith_aten.fakes import new_fake_mode, python_kernels
from framesmith_aten.fakes.symbols import symbolic_fake
from framesmith_guards import LocalSource

#: Calls that C++ alone refuses symbols, or decides by them.
CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "addbmm": (torch.addbmm, ((5, 10), (3, 5, 6), (3, 6, 10))),
    "diagonal_copy": (torch.diagonal_copy, ((5, 6),)),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 2, -2, 1)), ((2, 4, 6),)),
    "complex": (torch.complex, ((5, 10, 5), (10, 5))),
    "interpolate": (lambda x: torch.nn.functional.interpolate(x, scale_factor=2), ((2, 3, 8, 8),)),
    "cholesky_solve": (torch.cholesky_solve, ((5, 2), (5, 5))),
}


@pytest.mark.parametrize("name", CALLS)
def test_sizes_stay_symbols(name: str) -> None:
    function, shapes = CALLS[name]
    mode = new_fake_mode()
    fakes = [
        symbolic_fake(mode, torch.randn(shape), LocalSource(f"x{index}"), range(len(shape)))
        for index, shape in enumerate(shapes)
    ]
    with mode, python_kernels(mode):
        result = function(*fakes)
    env: Any = mode.shape_env
    assert result._has_symbolic_sizes_strides and not env.guards and not env.replacements
    expected = function(*map(torch.randn, shapes))
    assert [size.node.hint if isinstance(size, torch.SymInt) else size for size in result.shape] == [*expected.shape]


def _with_symbols() -> Any:
    mode = new_fake_mode()
    symbolic_fake(mode, torch.randn(4), LocalSource("x"), [0])
    return mode


@pytest.mark.parametrize("mode_of", ["nearest", "linear"])
@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 0, 8)], ids=["to no pixels", "of none"])
def test_upsampling_without_pixels_is_refused(shape: tuple[int, ...], mode_of: str) -> None:
    mode = new_fake_mode()
    input = symbolic_fake(mode, torch.randn(shape), LocalSource("x"), [0, 2])
    with mode, python_kernels(mode), pytest.raises(RuntimeError, match="without pixels"):
        torch.nn.functional.interpolate(input, mode=mode_of, scale_factor=0.3)


@pytest.mark.parametrize(("p", "train"), [(0.5, False), (0.0, True)])
def test_dropout_that_drops_nothing_gives_its_input(p: float, train: bool) -> None:
    x = torch.randn(3, requires_grad=True)
    with python_kernels(_with_symbols()):
        assert torch.dropout(x, p, train) is x
    with enable_python_dispatcher():
        # To those who ask for it, torch's rule says what it says: a copy in some releases.
        assert (torch.dropout(x, p, train) is x) is (decompositions.dropout(x, p, train) is x)


def test_dropout_draws_the_numbers_that_it_draws() -> None:
    x, mode = torch.ones(100), _with_symbols()
    torch.manual_seed(0)
    expected = torch.dropout(x, 0.3, True)
    torch.manual_seed(0)
    with python_kernels(mode):
        assert torch.equal(torch.dropout(x, 0.3, True), expected)


@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear"])
def test_low_precision_is_upsampled_by_the_operator(mode: str) -> None:
    x = torch.randn(2, 3, *[5] * {"linear": 1, "trilinear": 3}.get(mode, 2)).bfloat16()
    expected = torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode)
    with python_kernels(_with_symbols()):
        assert torch.equal(torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode), expected)


def test_nothing_changes_without_symbols() -> None:
    x = torch.randn(3)
    with python_kernels(new_fake_mode()):
        assert torch.dropout(x, 0.5, False) is x


def test_one_hot_takes_no_floats() -> None:
    mode = _with_symbols()
    with mode, python_kernels(mode):
        assert torch.nn.functional.one_hot(torch.arange(3), 4).shape == (3, 4)
        with pytest.raises(RuntimeError, match="LongTensor"):
            torch.nn.functional.one_hot(torch.randn(3), 4)
