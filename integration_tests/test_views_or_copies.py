"""Operations that give a view for some sizes and a copy for others: as in eager mode, also where data tell the sizes.

What is written to a view is seen in what it is a view of, inside of the graph and behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith

#: Of a tensor of six rows of which data tell how many are taken, or of its columns.
MADE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rows": lambda x, n: x[:n],
    "columns": lambda x, n: x[:, :n],
    "rows across": lambda x, n: x[:n].t(),
    "columns across": lambda x, n: x[:, :n].t(),
    "copied rows across": lambda x, n: x[:n].clone().t(),
    "a row expanded": lambda x, n: x[:1].expand(n, 4),
    "chosen rows": lambda x, n: x[torch.arange(6) < n].t(),
}
USED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda y: y.reshape(-1),
    "flattened": lambda y: torch.flatten(y),
    "ravelled": lambda y: y.ravel(),
    "two rows": lambda y: y.reshape(2, -1),
    "two columns": lambda y: y.reshape(-1, 2),
    "its own sizes": lambda y: y.reshape(y.shape),
    "as another": lambda y: y.reshape_as(torch.zeros(y.shape)),
    "unsqueezed": lambda y: y.reshape(y.shape[0], 1, y.shape[1]),
    "contiguous": lambda y: y.contiguous(),
    "channels last": lambda y: y[None, None].contiguous(memory_format=torch.channels_last),
    "to a format": lambda y: y[None, None].to(memory_format=torch.channels_last),
    "to a type": lambda y: y.to(torch.float32),
    "unflattened": lambda y: y.unflatten(0, (-1, 1)),
    "shuffled pixels": lambda y: F.pixel_shuffle(y[None, None], 1),
    "einsum": lambda y: torch.einsum("ij->ji", y),
    "in a column": lambda y: torch.atleast_3d(y).reshape(-1, 1),
}


def seen(run: Callable[..., Any], count: int) -> list[torch.Tensor] | None:
    """The results, the input behind the call, and both once the first result is written to; None for an error."""
    x = torch.arange(24.0).view(6, 4)
    try:
        first, *others = run(x, torch.tensor(count))
    except (RuntimeError, ValueError):
        return None
    found = [x.clone(), first.clone(), *(one.clone() for one in others)]
    if not torch._debug_has_internal_overlap(first):
        first.add_(100)
    return [*found, first, x, *others]


def written(made: str, used: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        y = MADE[made](x, count.item())  # type: ignore[arg-type]
        z = USED[used](y)
        z.add_(1)
        return y * 1, x.sum()

    return program


def returned(made: str, used: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        return (USED[used](MADE[made](x, count.item())),)  # type: ignore[arg-type]

    return program


def returned_beside(made: str, used: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, count: torch.Tensor) -> Any:
        y = MADE[made](x * 2, count.item())  # type: ignore[arg-type]
        return USED[used](y), y

    return program


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [written, returned, returned_beside])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("used", USED)
def test_a_view_or_a_copy_as_data_tell(made: str, used: str, program: Any, dynamic: bool | None) -> None:
    framesmith.reset()
    fn = program(made, used)
    run = framesmith.compile(fn, dynamic=dynamic, strict=True)
    for count in (2, 3, 4, 1, 6, 0):
        found: list[Any] = [seen(one, count) for one in (fn, run)]
        assert (found[0] is None) == (found[1] is None), count
        torch.testing.assert_close(found[1], found[0], msg=lambda text, count=count: f"{count}: {text}")
