"""Inputs of a graph: extracted by the guards, held by nothing else, loaded directly if they are arguments."""

import gc
import weakref

import pytest
import torch
from driver import check, compiled
from torch import nn

import framesmith_frames as frames

X = torch.arange(4.0)


class Layered(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def names_in(code):
    return set(code.co_names)


def test_parameters_come_from_the_guards():
    model = Layered()
    subject = compiled(model.forward)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(subject(X), model(X))
        entry = subject.of_kind("entry")[0]
        assert len(entry.check.extract((model, X), Layered.forward)) == len(entry.check.inputs) == 7
    assert not names_in(entry.residual) & {"_modules", "_parameters", "weight", "bias"}


def test_arguments_are_loaded():
    subject = check(lambda x, y: x + y, X, X)
    assert subject.of_kind("entry")[0].check.inputs == ()


def test_parameters_that_are_replaced_are_found():
    model = Layered()
    subject = compiled(model.forward)
    with torch.no_grad():
        for _ in range(3):
            model.layers[1].weight = nn.Parameter(torch.randn(4, 4))
            assert torch.equal(subject(X), model(X))
            model.layers[1].weight.mul_(2)
            assert torch.equal(subject(X), model(X))
    assert len(subject.of_kind("entry")) == 1


def test_globals_cells_lists_and_dicts():
    table = {"a": [X, X * 2], "b": {"c": X * 3}}
    free = X * 4

    def fn(x, *rest, **named):
        return x + table["a"][1] + table["b"]["c"] + free + rest[1] + named["k"]

    subject = compiled(fn)
    for _ in range(3):
        assert torch.equal(subject(X, X, X * 5, k=X * 6), fn(X, X, X * 5, k=X * 6))
        table["a"][1] = table["a"][1] + 1
        free = free + 1
    assert len(subject.of_kind("entry")) == 1


def test_under_a_torch_function_mode_the_python_check_extracts():
    """With a default device the guards are not native: the check's `extract` returns the inputs."""
    model = Layered()
    with torch.no_grad(), torch.device("cpu"):
        subject = compiled(model.forward)
        for _ in range(3):
            assert torch.equal(subject(X), model(X))
    [entry] = subject.of_kind("entry")
    assert len(entry.check.inputs) == 7


def test_a_replaced_tensor_is_freed_before_the_rest_of_the_frame():
    """As in eager mode; the first calls do not count, since the tracer's own objects wait for the collector."""
    holder, gone = {"cache": torch.zeros(4)}, []

    def step(x, old):
        holder["cache"] = holder["cache"] + x
        print(end="")  # breaks the graph
        look(old)
        return holder["cache"] * 2

    def look(old):
        gone.append(old() is None)

    frames.skip(look, "the test itself")
    subject = compiled(step)
    wrapped = frames.CompiledFunction(step, subject.converter)
    for call in (subject, wrapped):
        for _ in range(4):
            call(X, weakref.ref(holder["cache"]))
            gc.collect()
    assert gone[2:4] == gone[6:] == [True, True]


def test_an_error_of_the_graph_keeps_no_inputs():
    def fail(module, inputs):
        def run(*args):
            raise KeyboardInterrupt

        return run

    holder = {"w": torch.ones(4)}

    def fn(x):
        return x + holder["w"]

    subject = compiled(fn)
    subject.converter.compile_graph = fail
    with pytest.raises(KeyboardInterrupt) as raised:
        subject(X)
    dead = weakref.ref(holder["w"])
    del holder["w"]
    del raised
    gc.collect()
    assert dead() is None


def test_many_inputs():
    model = Layered(40)
    subject = compiled(model.forward)
    x = X.clone().requires_grad_()
    for _ in range(2):
        subject(x).sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))
        model.zero_grad()


def reads_grad(p):
    return p * 2 if p.grad is None else p + p.grad


def test_gradients_of_leaves_are_inputs():
    call = compiled(reads_grad)
    p, x = torch.ones(3, requires_grad=True), torch.ones(3)
    for grad in (None, torch.full((3,), 2.0), torch.full((3,), 5.0), None, torch.full((3,), 7.0)):
        for tensor in (p, x):
            tensor.grad = grad
            assert torch.equal(call(tensor), reads_grad(tensor))
    assert len(call.graphs) == 4 and not call.of_kind("break")


def test_a_gradient_changed_inside_is_changed_outside():
    def scale(p, q):
        p.grad.mul_(2)
        q.grad.add_(p.grad)
        return p.grad + q

    outcomes = []
    for shared in (False, True):
        for run in (scale, compiled(scale)):
            p, q = torch.ones(3), torch.ones(3)
            p.grad = torch.arange(3.0)
            q.grad = p.grad if shared else torch.ones(3)
            for _ in range(2):
                result = run(p, q)
            outcomes.append((result, p.grad.clone(), q.grad.clone(), p.grad is q.grad))
    for eager, found in (outcomes[:2], outcomes[2:]):
        assert eager[3] == found[3] and all(map(torch.equal, eager[:3], found[:3]))


def test_gradients_of_others_are_read_by_eager():
    def read(x):
        y = x * 2
        return y.sum(), x.grad

    x = (torch.ones(2, requires_grad=True) * 3).clone()
    x.retain_grad()
    x.sum().backward()
    call = compiled(read)
    assert torch.equal(call(x)[1], torch.ones(2))
    assert call.of_kind("break")


def test_a_break_that_the_program_asks_for():
    def marked(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    import torch._dynamo

    call = compiled(marked)
    assert torch.equal(call(X), marked(X)) and [event.broken.kind.id for event in call.of_kind("break")] == [
        "requested-break"
    ]
