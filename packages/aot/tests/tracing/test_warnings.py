"""Tracing repeats no warning of the capture."""

import warnings

import torch
import torch.nn.functional as F
from harness import graph_of, run_both


def softmax(x):
    return F.softmax(x * 2)


def test_tracing_warns_of_nothing():
    x = [torch.randn(3, requires_grad=True)]
    gm = graph_of(softmax)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        run_both(gm, x, training=True)
    assert records and all(record.filename.startswith("<eval_with_key>") for record in records)  # the graph as it is
