"""Recurrent layers and packed sequences as public code calls them: results equal eager's, in all modes."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import framesmith
from integration_tests.harness.differential import Case, check


class Packed(nn.Module):
    """Padded sequences through a recurrent layer, packed."""

    def __init__(self, cls: type[nn.RNNBase], *, sorted_: bool = True, **options: Any) -> None:
        super().__init__()
        self.layer = cls(4, 6, **options)
        self.sorted = sorted_

    def forward(self, x: torch.Tensor, lengths: Any) -> Any:
        first = self.layer.batch_first
        packed = rnn.pack_padded_sequence(torch.tanh(x), lengths, batch_first=first, enforce_sorted=self.sorted)
        out, hidden = self.layer(packed)
        padded, given = rnn.pad_packed_sequence(out, batch_first=first)
        return padded * 2, given, hidden, out.batch_sizes


class Sequences(nn.Module):
    """Further operations on packed sequences."""

    def __init__(self, cls: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = cls(4, 6)

    def forward(self, x: torch.Tensor, lengths: Any) -> Any:
        out, _ = self.layer(rnn.pack_sequence([x[:5, 0], x[:3, 1]]))
        facts = out.batch_sizes, out.sorted_indices, out.is_cuda, type(out) is rnn.PackedSequence
        return (
            out.data,
            facts,
            rnn.unpack_sequence(out),
            out.to(torch.float64).data,
            rnn.pad_sequence([x[:5, 0], x[:3, 1]]),
        )


class Cells(nn.Module):
    """A cell in a loop."""

    def __init__(self, cls: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = cls(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, out = None, []
        for step in x:
            state = self.cell(step, state)
            out.append(state if isinstance(state, torch.Tensor) else state[0])
        return torch.stack(out)


def steps(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(seed == 1)


def plainly(cls: type[nn.RNNBase], *states: int, **options: Any) -> tuple[Callable[[], nn.Module], Any]:
    def arguments(seed: int) -> tuple[Any, ...]:
        return (steps(seed), *(torch.zeros(1, 2, 6) for _ in states))

    return lambda: cls(4, 6, **options), arguments


RECURRENT: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]]]] = {}
for _cls in (nn.RNN, nn.GRU, nn.LSTM):
    _name = _cls.__name__
    RECURRENT |= {
        f"{_name}": plainly(_cls),
        f"{_name} of two layers, bidirectional": plainly(
            _cls, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5
        ),
        f"{_name} without biases": plainly(_cls, bias=False),
        f"{_name} copied": (functools.partial(lambda cls: copy.deepcopy(cls(4, 6)), _cls), lambda seed: (steps(seed),)),
        f"{_name} of views": (functools.partial(_cls, 4, 6), lambda seed: (steps(seed).transpose(0, 1),)),
        f"{_name} without batch": (functools.partial(_cls, 4, 6), lambda seed: (steps(seed)[:, 0],)),
        f"{_name} in double": (
            functools.partial(lambda cls: cls(4, 6).double(), _cls),
            lambda seed: (steps(seed, torch.float64),),
        ),
        f"{_name} packed": (functools.partial(Packed, _cls), lambda seed: (steps(seed), torch.tensor([5, 3 + seed]))),
        f"{_name} packed, a list": (functools.partial(Packed, _cls), lambda seed: (steps(seed), [5, 3])),
        f"{_name} packed, unsorted": (
            functools.partial(Packed, _cls, sorted_=False, bidirectional=True, num_layers=2),
            lambda seed: (steps(seed), torch.tensor([3, 5])),
        ),
        f"{_name} packed, batch first": (
            functools.partial(Packed, _cls, batch_first=True),
            lambda seed: (steps(seed).transpose(0, 1), torch.tensor([5, 4])),
        ),
        f"{_name} of sequences": (functools.partial(Sequences, _cls), lambda seed: (steps(seed), None)),
        f"{_name} given packed": (
            functools.partial(_cls, 4, 6),
            lambda seed: (rnn.pack_padded_sequence(steps(seed), torch.tensor([5, 3])),),
        ),
        f"{_name} refuses lengths": (functools.partial(Packed, _cls), lambda seed: (steps(seed), torch.tensor([3, 5]))),
    }
for _cell in (nn.RNNCell, nn.GRUCell, nn.LSTMCell):
    RECURRENT[_cell.__name__] = functools.partial(Cells, _cell), lambda seed: (steps(seed),)
RECURRENT["GRU with a state"] = plainly(nn.GRU, 1)
RECURRENT["LSTM with projections"] = plainly(nn.LSTM, proj_size=3)

MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "training": contextlib.nullcontext,
    "evaluation": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


IN_OTHER_MODES = ("RNN of two layers, bidirectional", "GRU packed", "LSTM", "LSTM packed, unsorted", "GRUCell")


@pytest.mark.sampled(22)
@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in RECURRENT for mode in MODES if mode == "training" or name in IN_OTHER_MODES],
)
@pytest.mark.filterwarnings("ignore:.*nothing of it is compiled")
@pytest.mark.filterwarnings("error::framesmith.FramesmithWarning")
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_equal_eager(name: str, mode: str) -> None:
    make, arguments = RECURRENT[name]

    def case() -> Case:
        layer = make().train(mode == "training")
        calls = [arguments(seed) for seed in (0, 0, 1)]
        refused = name.endswith("refuses lengths") or mode in ("no_grad", "inference")
        return Case(
            layer, calls, watch=list(layer.parameters()), around=[MODES[mode]] * 3, backward=not refused, atol=1e-5
        )

    assert check(case, strict=True)["frames_failed"] == 0


def test_packed_sequences_break_few_times() -> None:
    """Packing, the layer's run and padding run eagerly; the next batch of these lengths adds no break."""
    framesmith.reset()
    model = framesmith.compile(Packed(nn.LSTM), strict=True)
    model(steps(0), torch.tensor([5, 3]))
    first = framesmith.stats()
    model(steps(0), torch.tensor([5, 3]))
    assert first["breaks"] <= 6 and framesmith.stats()["breaks"] == first["breaks"]
