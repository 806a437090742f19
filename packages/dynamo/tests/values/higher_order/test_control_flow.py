"""`torch.cond` of a known condition is the call of a branch; of data it breaks the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from driver import check, compiled

from framesmith_dynamo.convert_frame.errors import BreakNotAllowed

Tensor = torch.Tensor
X = torch.linspace(-1, 2, 8)


def by_size(x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))


WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "size": by_size,
    "constant": lambda x: torch.cond(True, lambda x: x.sin(), lambda x: x.cos(), operands=(x,)),
    "without operands": lambda x: torch.cond(False, lambda: x.sin(), lambda: x.cos()),
    "nested": lambda x: torch.cond(0, by_size, lambda x: torch.cond(1.0, by_size, by_size, [x]), [x]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_a_known_condition(name: str, dynamic: bool) -> None:
    for size in (8, 3):
        check(WHOLE[name], X[:size], dynamic=dynamic, fullgraph=True)


def test_a_condition_of_data_breaks() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    with pytest.raises(BreakNotAllowed, match="higher-order-operator"):
        compiled(function, fullgraph=True)(X)
