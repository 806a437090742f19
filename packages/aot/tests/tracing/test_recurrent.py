"""GRUs and RNNs whose graphs do not grow with the number of steps, with eager mode's results and gradients."""

from __future__ import annotations

import pytest
import torch
from harness import Recording, graph_of
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_aot import compile_graph
from framesmith_aot.trace import functional
from framesmith_aot.trace.replacements.recurrent import FEW_STEPS, why_not

LONG = FEW_STEPS + 4

FUNCTIONS = {
    "gru": lambda x, h, w, r, b, d: torch.gru(x, h, (w, r, b, d), True, 1, 0.0, True, False, True),
    "tanh": lambda x, h, w, r, b, d: torch.rnn_tanh(x, h, (w, r, b, d), True, 1, 0.0, True, False, False),
    "relu": lambda x, h, w, r, b, d: torch.rnn_relu(x, h, (w, r, b, d), True, 1, 0.0, True, False, False),
}


def two_results(call):
    def fn(x, h, w, r, b, d):
        results = call(x, h, w, r, b, d)
        return results[0], results[1]

    return fn


def inputs_for(name, steps):
    torch.manual_seed(0)
    gates = 3 if name == "gru" else 1
    shape = (2, steps, 5) if name == "gru" else (steps, 2, 5)
    sizes = [shape, (1, 2, 4), (gates * 4, 5), (gates * 4, 4), (gates * 4,), (gates * 4,)]
    return [torch.randn(size, dtype=torch.float64).requires_grad_() for size in sizes]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_long_loops_are_one_call_in_either_direction(name):
    sizes = set()
    for steps in (LONG, 3 * LONG):
        inputs, fn = inputs_for(name, steps), two_results(FUNCTIONS[name])
        recording = Recording()
        found = compile_graph(graph_of(fn), inputs, compiler=recording)(*inputs)
        wanted = fn(*inputs)
        weights = [torch.randn_like(one) for one in wanted]
        for one, two in zip(found, wanted, strict=True):
            assert one.stride() == two.stride()
            torch.testing.assert_close(one, two)
        for results in ([0], [1], [0, 1]):
            grads = [
                torch.autograd.grad([run[at] for at in results], inputs, [weights[at] for at in results], True)
                for run in (found, wanted)
            ]
            torch.testing.assert_close(*grads)
        graphs = recording.graphs["forward"] + recording.graphs["backward"]
        targets = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
        assert sum("framesmith_aten" in target for target in targets) == 2
        sizes.add(len(recording.graphs["forward"][0].graph.nodes))
    assert len(sizes) == 1


def test_unsaved_tensors_may_be_mutated():
    """The layer's derivative reads the states; eager mode saves each step's, not their stack."""
    inputs, fn = inputs_for("gru", LONG), two_results(FUNCTIONS["gru"])
    grads = []
    for run in (fn, compile_graph(graph_of(fn), inputs, compiler=Recording())):
        output, last = run(*inputs)
        weights = torch.linspace(-1, 1, output.numel()).reshape(output.shape), torch.ones_like(last)
        with torch.no_grad():
            for one in (output, last, inputs[0], inputs[4]):  # the input is transposed, and copied
                one.mul_(2).div_(2)
        grads.append(torch.autograd.grad((output, last), inputs, weights))
    torch.testing.assert_close(*grads)


def test_saved_tensors_must_not_be_mutated():
    inputs, fn = inputs_for("tanh", LONG), two_results(FUNCTIONS["tanh"])
    for run in (fn, compile_graph(graph_of(fn), inputs, compiler=Recording())):
        for changed in (inputs[0], inputs[1], inputs[3]):
            output, _ = run(*inputs)
            with torch.no_grad():
                changed.add_(0)
            with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
                output.sum().backward()


def test_other_calls_are_traced_step_by_step():
    def reason(args, **kwargs):
        mode = FakeTensorMode()
        fakes = [mode.from_tensor(one.detach()) for one in inputs_for("gru", LONG)]
        with mode, functional.functionalising():
            return why_not(args(*map(functional.wrap, fakes)), kwargs)

    rest = (True, 1, 0.0, True, False, True)
    assert reason(lambda x, h, *w: (x, h, w, *rest)) is None
    assert "few steps" in reason(lambda x, h, *w: (x[:, :FEW_STEPS], h, w, *rest))
    assert "packed" in reason(lambda x, h, *w: (x, x, h, w, *rest[:-1]))
    assert "types" in reason(lambda x, h, *w: (x.float(), h, w, *rest))
    assert "other shapes" in reason(lambda x, h, *w: (x[0], h, w, *rest))
    assert "weights" in reason(lambda x, h, *w: (x, h, w[:2], *rest))
    assert "no elements" in reason(lambda x, h, *w: (x[:0], h[:, :0], w, *rest))
    with torch.autocast("cpu", torch.bfloat16):
        assert "types" in reason(lambda x, h, *w: (x, h, w, *rest))


def test_results_transposed_in_place_are_no_views():
    def fn(x, h, w, r, b, d):
        return (torch.gru(x, h, (w, r, b, d), True, 1, 0.0, True, False, True)[0],)

    inputs = inputs_for("gru", LONG)
    run = compile_graph(graph_of(fn), inputs, compiler=Recording())
    (found,), (wanted,) = run(*inputs), fn(*inputs)
    assert (found._is_view(), found.stride()) == (wanted._is_view(), wanted.stride()) == (False, wanted.stride())
    second = []
    for result in (found, wanted):
        grads = torch.autograd.grad(result.sin().sum(), inputs[2:], create_graph=True)
        second.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), inputs[2:]))
    for ours, theirs in zip(*second, strict=True):
        torch.testing.assert_close(ours, theirs)
