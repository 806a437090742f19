"""Matmuls moved to oneDNN give the same numbers, and only those that fit are moved."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.native_ops.matmul import rewrite
from framesmith_backends.native_ops.matmul.providers import class_of
from framesmith_backends.native_ops.matmul.rewrite import LAYOUTS, move_matmuls


def targets(gm: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def test_a_large_linear_is_moved_and_equal() -> None:
    x, w, b = torch.randn(256, 256), torch.randn(300, 256), torch.randn(300)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b)) + F.linear(x, w)

    gm = trace(function, [x, w, b])
    before = targets(gm)
    assert targets(move_matmuls(gm, "onednn")).count("mkldnn._linear_pointwise.default") == 2
    assert targets(gm) == before
    call = CpuBackend().compile(gm, [x, w, b], options={"matmul": "onednn"})
    (found,) = call([x, w, b])
    wanted = function(x, w, b)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", LAYOUTS)
def test_each_form_of_matmul(form: str) -> None:
    sizes = {"n": (256, 300), "t": (300, 256)}
    a, b = torch.randn(sizes[form[0]]), torch.randn(tuple(reversed(sizes[form[1]])))

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left = a.t() if form[0] == "t" else a
        return (left @ (b.t() if form[1] == "t" else b)).relu()

    gm = trace(function, [a, b])
    assert "mkldnn._linear_pointwise.default" in targets(move_matmuls(gm, "onednn"))
    assert move_matmuls(gm, "aten") is gm
    (found,) = CpuBackend().compile(gm, [a, b], options={"matmul": "onednn"})([a, b])
    wanted = function(a, b)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_other_calls_stay() -> None:
    for x, w in (
        (torch.randn(8, 16), torch.randn(8, 16)),
        (torch.randn(256, 512)[:, ::2], torch.randn(256, 256)),
        (torch.randn(256, 256).double(), torch.randn(256, 256).double()),
    ):
        gm = trace(F.linear, [x, w])
        assert move_matmuls(gm, "onednn") is gm
        assert move_matmuls(gm, "auto") is gm


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("biased", [False, True])
def test_our_own_kernel_takes_each_form(form: str, biased: bool) -> None:
    sizes = {"n": (256, 300), "t": (300, 256)}
    a, b = torch.randn(sizes[form[0]]), torch.randn(tuple(reversed(sizes[form[1]])))
    bias = torch.randn(256)

    def function(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        left, right = a.t() if form[0] == "t" else a, b.t() if form[1] == "t" else b
        return (torch.addmm(bias, left, right) if biased else left @ right).relu()

    gm = trace(function, [a, b, bias])
    assert "framesmith_backends.matmul.default" in targets(move_matmuls(gm, "native"))
    (found,) = CpuBackend().compile(gm, [a, b, bias], options={"matmul": "native"})([a, b, bias])
    wanted = function(a, b, bias)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_fastest_provider_is_chosen_for_each_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(16, 1024), torch.randn(1024, 1024)
    gm = trace(F.linear, [x, w])
    for best, target in (("native", "framesmith_backends.matmul"), ("onednn", "mkldnn._linear"), ("aten", "aten.mm")):
        monkeypatch.setattr(rewrite, "fastest", {class_of("nt", 16, 1024, 1024, False): best}.__getitem__)
        assert any(t.startswith(target) for t in targets(move_matmuls(gm, "auto"))), best


def test_results_of_our_own_kernel_may_be_changed() -> None:
    x, w = torch.randn(512, 256), torch.randn(256, 256)
    (found,) = CpuBackend().compile(trace(F.linear, [x, w]), [x, w], options={"matmul": "native"})([x, w])
    assert not found._is_view()
    found.requires_grad_(True).mul(2).sum().backward()
    wanted = F.linear(x, w.mul_(2))
    (again,) = CpuBackend().compile(trace(F.linear, [x, w]), [x, w], options={"matmul": "native"})([x, w])
    torch.testing.assert_close(again, wanted, rtol=1e-4, atol=1e-4)
