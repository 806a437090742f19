"""Operations that raise on some data raise as eager does, whether or not their result is used, cold and warm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith

T = torch.tensor
NAN = torch.full((4, 4), float("nan"))

#: name -> (target, arguments that the target refuses for their data)
FAILING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (F.embedding, (T([5]), torch.zeros(4, 2))),
    "embedding_bag": (F.embedding_bag, (T([5, 1]), torch.zeros(4, 2), T([0, 1]))),
    "getitem": (torch.Tensor.__getitem__, (torch.zeros(4), T([5]))),
    "gather": ("gather", (torch.zeros(4), 0, T([5]))),
    "scatter": ("scatter", (torch.zeros(4), 0, T([5]), 1.0)),
    "index_select": ("index_select", (torch.zeros(4), 0, T([5]))),
    "index_add": ("index_add", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "index_copy_": ("index_copy_", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "take": (torch.take, (torch.zeros(4), T([5]))),
    "cross_entropy": (F.cross_entropy, (torch.zeros(2, 4), T([1, 5]))),
    "nll_loss": (F.nll_loss, (torch.zeros(2, 4), T([1, 5]))),
    "multi_margin_loss": (F.multi_margin_loss, (torch.zeros(2, 4), T([1, 5]))),
    "binary_cross_entropy": (F.binary_cross_entropy, (torch.full((2,), 2.0), torch.ones(2))),
    "multinomial": (torch.multinomial, (-torch.ones(4), 1)),
    "bernoulli": (torch.bernoulli, (torch.full((2,), 2.0),)),
    "poisson": (torch.poisson, (-torch.ones(4),)),
    "normal": (torch.normal, (0.0, -torch.ones(4))),
    "inv": (torch.linalg.inv, (torch.zeros(4, 4),)),
    "cholesky": (torch.linalg.cholesky, (torch.zeros(4, 4),)),
    "solve": (torch.linalg.solve, (torch.zeros(4, 4), torch.zeros(4, 4))),
    "eigh": (torch.linalg.eigh, (NAN,)),
    "svd": (torch.linalg.svd, (NAN,)),
    "matrix_power": (torch.linalg.matrix_power, (torch.zeros(4, 4), -1)),
    "floor_divide": (torch.floor_divide, (T([1]), T([0]))),
    "remainder": (torch.remainder, (T([1]), T([0]))),
    "fmod": ("fmod", (T([1]), 0)),
    "histc": (torch.histc, (torch.full((3,), float("inf")), 4)),
    "max_unpool1d": (F.max_unpool1d, (torch.zeros(1, 1, 2), T([[[0, 9]]]), 2)),
    "_assert_async": (torch._assert_async, (torch.zeros(1),)),
    "one_hot": (F.one_hot, (T([5]), 3)),
    "quantile": (torch.quantile, (torch.ones(3), 2.0)),
    "quantile_t": (torch.quantile, (torch.ones(3), T([2.0]))),
    "ctc": (F.ctc_loss, (torch.randn(5, 1, 4).log_softmax(2), T([[9, 9]]), T([5]), T([2]))),
    "pack": (lambda x, n: torch.nn.utils.rnn.pack_padded_sequence(x, n).data, (torch.ones(3, 2, 4), T([1, 3]))),
    "put": ("put", (torch.zeros(4), T([9]), torch.ones(1))),
    "scatter_add": ("scatter_add", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "index_fill": ("index_fill", (torch.zeros(4), 0, T([9]), 1.0)),
    "masked_scatter": ("masked_scatter", (torch.zeros(4), torch.ones(4) > 0, torch.ones(2))),
    "searchsorted": (
        torch.searchsorted,
        (
            torch.arange(4.0),
            torch.ones(2),
        ),
    ),
    "unravel": (torch.unravel_index, (T([99]), (3, 3))),
    "mlml": (F.multilabel_margin_loss, (torch.zeros(1, 4), T([[9, 0, 0, 0]]))),
    "triplet": (F.gaussian_nll_loss, (torch.zeros(3), torch.zeros(3), -torch.ones(3))),
    "rrelu": (F.rrelu, (torch.ones(3), 0.9, 0.1, True)),
    "bern": (torch.bernoulli, (torch.ones(3), 2.0)),
    "norm neg": (torch.normal, (0.0, -1.0, (3,))),
    "cat idx": (lambda x, i: x[i, i], (torch.zeros(3, 3), T([4]))),
    "setitem": (lambda x, i: x.__setitem__(i, 1.0), (torch.zeros(3), T([4]))),
    "take_along": (torch.take_along_dim, (torch.zeros(3), T([4]), 0)),
    "chol_solve": (torch.linalg.lu_solve, (torch.zeros(2, 2), T([9, 9], dtype=torch.int32), torch.ones(2, 2))),
    "grid": (torch.repeat_interleave, (torch.ones(3), T([-1, 1, 1]))),
    "seg": (torch.segment_reduce, (torch.ones(3), "sum")),
}


def call(target: Any, args: tuple[Any, ...]) -> Any:
    return getattr(args[0], target)(*args[1:]) if isinstance(target, str) else target(*args)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    log: list[int] = []
    try:
        function(log, *copies)
    except Exception as error:
        return f"{log} {type(error).__name__}: {error}"
    return f"{log} nothing raised"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("use", [True, False])
def test_raises_where_eager_does(name: str, use: bool) -> None:
    target, given = FAILING[name]

    def function(log: list[int], *args: Any) -> Any:
        log.append(1)
        result = call(target, args)
        log.append(2)
        return result if use else [arg + 1 for arg in args if isinstance(arg, torch.Tensor)]

    eager = outcome(function, given)
    framesmith.reset()
    compiled = framesmith.compile(function)
    assert [outcome(compiled, given) for _ in range(3)] == [eager] * 3


def _along_no_dimension(x: torch.Tensor) -> torch.Tensor:
    return x.select(-3, 0)


def _in_sizes_that_no_strides_show(x: torch.Tensor) -> torch.Tensor:
    return x.t().unsqueeze(1).view(-1)


def _beyond_the_end(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 3), (1, 2), 1)


@pytest.mark.parametrize("view", [_along_no_dimension, _in_sizes_that_no_strides_show, _beyond_the_end])
@pytest.mark.parametrize("used", [False, True])
def test_a_view_that_is_not_there_raises_after_what_came_before(
    view: Callable[[torch.Tensor], torch.Tensor], used: bool
) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x += 2
        shown = view(y)
        return x + shown.sum() if used else x

    for run in (f, framesmith.compile(f)):
        x = torch.zeros(4)
        with pytest.raises((IndexError, RuntimeError)):
            run(x, torch.zeros(2, 3))
        assert torch.equal(x, torch.full((4,), 2.0))


@pytest.mark.parametrize("result", [lambda x: x, lambda x: x * 1, lambda x: x.as_strided((4, 4), (1, 1), 0).sum()])
def test_a_view_beyond_the_end_raises_whatever_else_there_is(result: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((4, 4), (1, 1), 0)
        return result(x)

    framesmith.reset()
    for run in (f, framesmith.compile(f, strict=True)):
        with pytest.raises(RuntimeError, match="out of bounds"):
            run(torch.zeros(4))
        assert run(torch.zeros(8)[:4].clone().resize_(8)[:4]).numel() > 0


#: Operations that torch refuses for some sizes, checked in Python, in a kernel, or in a composite operator.
REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: F.linear(x, torch.ones(2, 9)),
    "matmul": lambda x: x @ torch.ones(7),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, torch.ones(9, 2)),
    "reshape": lambda x: x.reshape(7, -1),
    "conv1d": lambda x: F.conv1d(x[None], torch.ones(1, 9, 1)),
    "layer_norm": lambda x: F.layer_norm(x, (9,)),
    "group_norm": lambda x: F.group_norm(x[None], 7),
    "tensordot": lambda x: torch.tensordot(x, torch.ones(9, 2), dims=1),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, torch.ones(9, 2)]),
    "bilinear": lambda x: F.bilinear(x, x, torch.ones(2, 9, 9)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.ones(9).long()),
    "trapezoid": lambda x: torch.trapezoid(x, x, dim=5),
    "squeeze": lambda x: x.squeeze(7),
    "squeeze of several": lambda x: x.squeeze((0, -9)),
    "squeeze in place": lambda x: x.squeeze_(2),
    "a tensor of inference mode": lambda x: F.linear(INFERENCE, torch.ones(2, 3, requires_grad=True)) + x.sum(),
}
with torch.inference_mode():
    INFERENCE = torch.ones(4, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_the_programs_error(name: str, dynamic: bool | None) -> None:
    def caught(x: torch.Tensor) -> str:
        try:
            return str(REFUSED[name](x * 2).shape)
        except (RuntimeError, ValueError, IndexError) as error:
            return f"{type(error).__name__}: {error}"

    framesmith.reset()
    x = torch.ones(4, 3)
    for function in (REFUSED[name], caught):
        compiled = framesmith.compile(function, dynamic=dynamic, strict=True)
        for _ in range(2):
            assert outcome(lambda log, x: compiled(x), (x,)) == outcome(lambda log, x: function(x), (x,))
    assert compiled(x) == caught(x)
