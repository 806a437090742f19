"""Matrix products moved to oneDNN give the same numbers, and only those that fit are moved."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.rewrite.linear import onednn_is_faster, use_onednn, wants_onednn


def targets(gm: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def test_a_large_linear_is_moved_and_equal() -> None:
    x, w, b = torch.randn(256, 256), torch.randn(300, 256), torch.randn(300)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b)) + F.linear(x, w)

    gm = trace(function, [x, w, b])
    before = targets(gm)
    assert targets(use_onednn(gm)).count("mkldnn._linear_pointwise.default") == 2
    assert targets(gm) == before
    call = CpuBackend().compile(gm, [x, w, b], options={"matmul": "onednn"})
    (found,) = call([x, w, b])
    wanted = function(x, w, b)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_stays() -> None:
    for x, w in (
        (torch.randn(8, 16), torch.randn(8, 16)),
        (torch.randn(256, 256).t(), torch.randn(256, 256)),
        (torch.randn(256, 256).double(), torch.randn(256, 256).double()),
        (torch.randn(256, 256), torch.randn(256, 256).t()),
    ):
        gm = trace(F.linear, [x, w])
        assert use_onednn(gm) is gm
        assert not wants_onednn(gm)


def test_the_trial_answers_the_same_again() -> None:
    assert onednn_is_faster() is onednn_is_faster()
