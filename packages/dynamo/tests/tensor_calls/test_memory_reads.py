"""Packed recurrent layers read lengths on the host: the call runs eagerly between two graphs, for all lengths."""

from __future__ import annotations

import pytest
import torch
from driver import compiled
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from framesmith_dynamo.tensor_calls.calls import MEMORY_READ

LENGTHS = ([5, 3, 2], [4, 4], [6], [5, 3, 2], [7, 1, 1, 1])
LAYERS = {
    "GRU": lambda: torch.nn.GRU(4, 6),
    "LSTM": lambda: torch.nn.LSTM(4, 6, 2, bidirectional=True),
    "RNN": lambda: torch.nn.RNN(4, 6, nonlinearity="relu"),
    "projections": lambda: torch.nn.LSTM(4, 6, proj_size=3),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_packed_layers(layer, dynamic):
    module = LAYERS[layer]()

    def fn(x, lengths):
        output, _ = pad_packed_sequence(module(pack_padded_sequence(x.sin(), lengths))[0])
        return output.cos()

    subject = compiled(fn, dynamic=dynamic, recompile_limit=50)
    for lengths in LENGTHS:
        x = torch.randn(max(lengths), len(lengths), 4, requires_grad=True)
        results = [call(x, torch.tensor(lengths)) for call in (fn, subject)]
        gradients = [torch.autograd.grad(result.sum(), x)[0] for result in results]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*gradients)
    assert MEMORY_READ in {event.broken.kind for event in subject.of_kind("break")}


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", LAYERS)
def test_packed_layers_without_gradients(layer, around):
    """In inference mode composite operators are recorded as they are, and run by their own kernel."""
    module = LAYERS[layer]().eval()
    subject = compiled(lambda packed: module(packed)[0].data + 1, recompile_limit=50)
    with around():
        for lengths in LENGTHS:
            packed = pack_padded_sequence(torch.randn(max(lengths), len(lengths), 4), torch.tensor(lengths))
            torch.testing.assert_close(subject(packed), module(packed)[0].data + 1)
