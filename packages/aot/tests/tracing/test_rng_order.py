"""Random numbers land in the elements where eager mode puts them, for any strides."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of

from framesmith_aot import AotUnsupported


def filled_in_place(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x.permute(2, 0, 1)).bernoulli_(0.3)


def drawn(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x.detach().transpose(0, 1).sigmoid(), 0.3)


def drawn_by_method(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).sigmoid().bernoulli()


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.transpose(0, 1), 0.3)


def dropped_beside_drawn(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.transpose(0, 1), 0.3) + torch.bernoulli(x.detach().transpose(0, 1).sigmoid(), 0.3)


def noise_like(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x.transpose(0, 1)) + torch.randn_like(x.transpose(1, 2))[0, 0, 0]


@pytest.mark.parametrize("fn", [filled_in_place, drawn, drawn_by_method, dropped, dropped_beside_drawn, noise_like])
@pytest.mark.parametrize("training", [False, True])
def test_the_same_numbers_in_the_same_elements(fn: Callable[[torch.Tensor], torch.Tensor], training: bool) -> None:
    x = torch.randn(5, 2, 4, requires_grad=training)
    run = compiled(graph_of(fn), [x])
    torch.manual_seed(0)
    expected = fn(x)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    (actual,) = run(x)
    assert torch.equal(actual, expected) and actual.stride() == expected.stride()
    assert torch.equal(torch.get_rng_state(), after)


def test_normal_numbers_in_memory_with_gaps_are_refused() -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        x[..., ::2].normal_()
        return x.t().clone().normal_()

    with pytest.raises(AotUnsupported, match="rng-order"):
        compiled(graph_of(fill), [torch.zeros(6, 8)])
