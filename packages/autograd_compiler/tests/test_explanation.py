"""Reports of captured passes: what is compiled, what is opaque and why, what the engine runs."""

from __future__ import annotations

import pytest
import torch
from harness import Scaled, identity

from framesmith_autograd_compiler import capture


def clipped(grad):
    return grad.clamp(max=1)


def weight():
    return torch.randn(3, 4, requires_grad=True)


def kinds(seen):
    [program] = seen.programs
    return [(step.kind, step.calls) for step in program.explain()]


def test_user_code_is_opaque_and_named():
    w = weight()
    w.register_hook(clipped)
    line = clipped.__code__.co_firstlineno
    with capture(identity) as seen:
        Scaled.apply(w.sin(), 2.0).cos().sum().backward()
    steps = kinds(seen)
    opaque = [calls for kind, calls in steps if kind == "opaque"]
    assert opaque == [("backward of a Function Scaled",), (f"hook of a tensor clipped (test_explanation.py:{line})",)]
    assert [kind for kind, _ in steps] == ["compiled", "opaque", "compiled", "opaque", "accumulation"]
    assert steps[0][1] == ("SumBackward0", "CosBackward0") and steps[2][1] == ("SinBackward0",)
    assert all(step.why for step in seen.programs[0].explain() if step.kind == "opaque")


def test_a_pass_without_user_code_is_compiled_whole():
    with capture(identity) as seen:
        weight().sin().sum().backward()
    assert kinds(seen) == [("compiled", ("SumBackward0", "SinBackward0")), ("accumulation", ("write to .grad",))]


def test_what_the_compiler_refuses_runs_call_by_call_for_a_reason():
    def refuse(gm):
        raise NotImplementedError("no such operator")

    with capture(refuse, on_failure=lambda where, error: None) as seen:
        weight().sin().sum().backward()
    assert kinds(seen)[0] == ("call by call", ("SumBackward0", "SinBackward0"))
    assert "NotImplementedError: no such operator" in str(seen)


@pytest.mark.filterwarnings("ignore:the backward pass is not captured")
def test_what_the_engine_runs_has_a_reason():
    with capture(identity) as seen:
        torch.autograd.grad(weight().sin().sum(), weight(), create_graph=True, allow_unused=True)
    assert (
        str(seen)
        == "0 captured, 0 compiled\nrun by the engine: create_graph=True asks for a pass that is itself differentiable"
    )
