"""`vmapped`, `differentiated`, pull-backs, `pushed_forward`: torch's transforms over a graph, operands and results."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.nn.modules.module import register_module_forward_hook

from framesmith_aten.graphs.transforms import (
    BodyInterpreter,
    differentiated,
    pulled_back,
    pushed_forward,
    vmapped,
    with_pullback,
)


def body(a, w):
    return a * 2 + w, w.exp(), a.sum()


def test_dimensions_of_operands_and_results():
    a, w = torch.randn(4, 3), torch.randn(4)
    found = vmapped(body, (1, None), (1, None, 0), "error", a, w)
    for one, other in zip(found, (a * 2 + w[:, None], w.exp(), a.sum(0)), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_comes_out():
    assert vmapped(lambda a: (), (0,), (), "error", torch.ones(3)) == ()


def test_no_transform_is_left_behind():
    def fails(a):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        vmapped(fails, (0,), (0,), "error", torch.ones(3))
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_gradients_a_value_and_others():
    a, b, w = torch.randn(3), torch.randn(3), torch.randn(3, requires_grad=True)
    found = differentiated(lambda a, b, w: ((a * b * w).sum(), a.exp(), w), 2, (1,), a, b, w)
    for one, other in zip(found, (a * w, (a * b * w).sum(), a.exp(), w), strict=True):
        torch.testing.assert_close(one, other)
    assert found[0].requires_grad and found[3] is w


def test_results_and_a_pullback():
    a, b, w = torch.randn(3), torch.randn(3), torch.randn(3, requires_grad=True)
    out, other, pullback = with_pullback(lambda a, b, w: (a * b * w, a.exp()), 2, (1,), 1, a, b, w)
    torch.testing.assert_close((out, other), (a * b * w, a.exp()))
    for cotangent in (torch.ones(3), b):
        [gradient] = pulled_back(pullback, True, True, cotangent)
        torch.testing.assert_close(gradient, a * w * cotangent)
        assert gradient.requires_grad
    assert not pulled_back(pullback, False, False, b)[0].requires_grad


def test_a_pullback_of_each():
    a = torch.randn(3)
    _, pullback = with_pullback(lambda a: (a.sin(),), 1, (0,), 1, a)
    [found] = vmapped(
        lambda b, pull: pulled_back(pull, True, True, b), (0, None), (0,), "error", torch.eye(3), pullback
    )
    torch.testing.assert_close(found, a.cos().diag())


def test_results_tangents_and_others():
    a, b, w = torch.randn(3), torch.randn(3), torch.randn(3, requires_grad=True)
    found = pushed_forward(lambda a, b, w: (a * b * w, a.exp()), 2, (1,), 1, False, a, b, a, w)
    torch.testing.assert_close(found, (a * b * w, a * a * w, a.exp()))
    assert found[1].requires_grad


def test_an_error_of_a_forward_formula_leaves_no_dispatch_key_behind():
    def fails(a):
        _guard = torch._C._DisableFuncTorch()  # as torch's printing has it; the error's traceback keeps it
        raise KeyError

    before = str(torch._C._dispatch_tls_local_exclude_set())
    with pytest.raises(KeyError):
        pushed_forward(fails, 1, (0,), 1, False, torch.ones(3), torch.ones(3))
    assert str(torch._C._dispatch_tls_local_exclude_set()) == before


@pytest.mark.parametrize("dim", [-1, 3])
def test_a_dimension_that_a_common_result_does_not_have(dim):
    """torch inserts it outside of the list of sizes, and ends the process, or not."""
    w = torch.ones(2, 3)
    for one in (w, torch.vmap(lambda a: a)(w)):
        with pytest.raises(ValueError, match="the same for all"):
            vmapped(lambda a, w: (a, w), (0, None), (0, dim), "error", torch.ones(4), one)
    assert vmapped(lambda a, w: (w,), (0, None), (0,), "error", torch.ones(4), w)[0].shape == (4, 2, 3)


def held(target):
    """A graph that calls a function, or a graph that it holds, with its operand."""
    graph = fx.Graph()
    operand = graph.placeholder("a")
    if isinstance(target, fx.GraphModule):
        called = graph.call_function(lambda body, *given: body(*given), (graph.get_attr("body"), operand))
    else:
        called = graph.call_function(target, (operand,))
    graph.output((called,))
    return fx.GraphModule({"body": target} if isinstance(target, fx.GraphModule) else {}, graph)


def test_nested_graphs_run_and_errors_keep_their_words():
    ran = []

    class Noting(BodyInterpreter):
        def run_node(self, n):
            ran.append(n.op)
            return super().run_node(n)

    [[found]] = Noting(held(held(torch.sin))).run(torch.ones(2))
    assert torch.equal(found, torch.ones(2).sin())
    assert ran.count("placeholder") == 2 and ran.count("call_function") == 2

    def fails(a):
        raise KeyError("mine")

    with pytest.raises(KeyError) as info:
        BodyInterpreter(held(held(fails))).run(torch.ones(2))
    assert info.value.args == ("mine",)


def test_a_body_is_no_module_of_the_program(capfd):
    """Hooks of all modules are not called, and FX reports nothing of errors."""
    module = fx.symbolic_trace(lambda a: (torch.linalg.cholesky(a).sum(),))
    called = []
    hook = register_module_forward_hook(lambda module, args, result: called.append(module))
    try:
        vmapped(module, (0,), (0,), "error", torch.eye(3).expand(2, 3, 3))
        differentiated(module, 1, (0,), torch.eye(3))
        for run in (
            lambda: vmapped(module, (0,), (0,), "error", -torch.eye(3)[None]),
            lambda: differentiated(module, 1, (0,), -torch.eye(3)),
        ):
            with pytest.raises(torch.linalg.LinAlgError):
                run()
    finally:
        hook.remove()
    assert not called
    assert capfd.readouterr().err == ""
