"""Results that are views of the whole of a kernel's buffer are allocated in the view's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.plan import make_plan
from framesmith_backends.schedule.steps import CallStep
from framesmith_backends.target import CPU

R = torch.randn

#: name -> (function, whether views remain as calls)
CASES: dict[str, tuple[Callable[..., Any], bool]] = {
    "flat": (lambda x: x.sum(0, keepdim=True).view(6), False),
    "transposed": (lambda x: x.exp().t(), False),
    "as an image": (lambda x: (x * 2).view(2, 2, 3, 2).permute(0, 3, 1, 2), False),
    "a chain of which a link is used": (lambda x: (lambda v: (v.t(), v.sort(0)[0]))(x.exp().view(3, 8)), True),
    "a part": (lambda x: x.exp()[1:], True),
    "both": (lambda x: (lambda h: (h, h.t()))(x.exp()), True),
    "two views": (lambda x: (lambda h: (h.view(-1), h.t()))(x.exp()), True),
    "twice the same": (lambda x: (lambda h: (h, h))(x.exp().t()), True),
    "expanded": (lambda x: x.sum(0).expand(3, 6), True),
    "a part, expanded to as many": (lambda x: x.exp()[:2, :1].expand(2, 12), True),
    "a diagonal, expanded to as many": (lambda x: x[:, :4].exp().diagonal().expand(4, 4), True),
    "used by a call": (lambda x: (lambda h: (h.t(), h.sort(0)[0]))(x.exp()), True),
    "view used by a call": (lambda x: (lambda h: (h, h.sort(0)[0]))(x.exp().t()), True),
    "read by a kernel": (lambda x: (lambda h: (h.t(), h.sum(0)))(x.exp()), False),
    "of an input": (lambda x: x.t(), True),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_as_in_eager(name: str) -> None:
    function, remain = CASES[name]
    x = R(4, 6)
    gm = trace(function, [x])
    for found, wanted in zip(CpuBackend().compile(gm, [x])([x]), gm(x), strict=True):
        assert found.stride() == wanted.stride() and found.storage_offset() == wanted.storage_offset()
        torch.testing.assert_close(found, wanted)
    steps = make_plan(lower_graph(gm, CPU).program, CPU, native=True).steps
    assert any(isinstance(step, CallStep) for step in steps) is remain


def test_results_share_memory_as_in_eager() -> None:
    x = R(4, 6)
    gm = trace(CASES["both"][0], [x])
    first, second = CpuBackend().compile(gm, [x])([x])
    assert first.data_ptr() == second.data_ptr()
