"""Graphs that cannot be compiled faithfully are refused, with an id and a reason."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from harness import Recording, compiled, graph_of, run_both
from torch import fx

from framesmith_aot import AotUnsupported, compile_graph
from framesmith_aten.graphs.transforms import differentiated, vmapped


def one_node(*calls, inputs=1):
    """Return a graph of call_method / call_function nodes on its inputs; its output is the last."""
    graph = fx.Graph()
    values = [graph.placeholder(f"x{at}") for at in range(inputs)]
    last = values[0]
    for kind, target, *args in calls:
        last = getattr(graph, kind)(target, (values[0], *args))
    graph.output((last,))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("calls", "id"),
    [
        ([("call_method", "requires_grad_")], "tensor-method"),
        ([("call_method", "resize_", 2)], "tensor-method"),
        ([("call_method", "backward")], "tensor-method"),
        ([("call_method", "numpy")], "tensor-method"),
        ([("call_function", torch.Tensor.requires_grad_)], "tensor-method"),
        ([("call_function", torch.autograd.backward)], "tensor-method"),
        ([("call_function", torch.detach_)], "tensor-method"),
        ([("call_function", torch.unique)], "data-dependent"),
        ([("call_method", "t_")], "metadata-mutation"),
        ([("call_method", "unsqueeze_", 0)], "metadata-mutation"),
        ([("call_function", torch.nonzero)], "data-dependent"),
        ([("call_function", torch.ops.aten.is_pinned.default)], "pinned-memory"),
        ([("call_function", torch.ops.aten.mm.default)], "trace-error"),
    ],
)
def test_refused(calls, id):
    with pytest.raises(AotUnsupported) as caught:
        compiled(one_node(*calls), [torch.ones(2, 3)])
    assert caught.value.id == id
    assert caught.value.what and caught.value.why


def test_pinned_memory_is_refused():
    gm = one_node(("call_function", torch.zeros_like))
    for pinned in (False, True):
        next(iter(gm.graph.find_nodes(op="call_function", target=torch.zeros_like))).kwargs = {"pin_memory": pinned}
        gm.recompile()
        if not pinned:
            compiled(gm, [torch.ones(2)])
            continue
        with pytest.raises(AotUnsupported, match="pinned-memory"):
            compiled(gm, [torch.ones(2)])


def test_no_change_of_requires_grad_is_allowed():
    x = torch.ones(2, requires_grad=True)
    compiled(one_node(("call_method", "requires_grad_")), [x])


def test_leaf_made_in_the_graph():
    gm = one_node(("call_function", lambda x: torch.ones(2, requires_grad=True)))
    with pytest.raises(AotUnsupported, match="leaf-output"):
        compiled(gm, [torch.ones(2)])


def test_mutated_input_that_overlaps_another():
    base = torch.zeros(4)
    gm = graph_of(lambda x, y: x.add_(1) + y)
    with pytest.raises(AotUnsupported, match="overlaps another"):
        compiled(gm, [base[:2], base[1:3]])
    compiled(graph_of(lambda x, y: x + y), [base[:2], base[1:3]])


def test_mutated_leaf_that_requires_gradients():
    gm = graph_of(lambda x: x.add_(1))
    with pytest.raises(AotUnsupported, match="leaf Variable"):
        compiled(gm, [torch.zeros(2, requires_grad=True)])


def test_value_needed_by_backward_overwritten():
    def fn(x, w):
        y = x * w
        x.add_(1)
        return (y,)

    inputs = [torch.zeros(2), torch.ones(2, requires_grad=True)]
    for run in (fn, compiled(graph_of(fn), inputs)):
        (result,) = run(*(value.detach().clone().requires_grad_(value.requires_grad) for value in inputs))
        assert result.requires_grad
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_error_of_the_graph_itself():
    with pytest.raises(AotUnsupported, match="trace-error"):
        compiled(graph_of(lambda x, y: x @ y), [torch.zeros(2, 3), torch.zeros(2, 3)])


def test_subclass_and_layout():
    class Mine(torch.Tensor):
        pass

    gm = graph_of(lambda x: x + 1)
    with pytest.raises(AotUnsupported, match="Mine"):
        compiled(gm, [torch.zeros(2).as_subclass(Mine)])
    with pytest.raises(AotUnsupported, match="layout"):
        compiled(gm, [torch.eye(2).to_sparse()])


def test_statistics_updated_behind_the_schema():
    def fn(x, m, v):
        return torch.instance_norm(x, None, None, m, v, True, 0.1, 1e-5, False)

    with pytest.raises(AotUnsupported, match="hidden-mutation"):
        compiled(graph_of(fn), [torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)])


def test_modes_and_wrappers():
    from torch.utils.flop_counter import FlopCounterMode

    gm = graph_of(lambda x: x @ x)
    with FlopCounterMode(display=False), pytest.raises(AotUnsupported, match="dispatch-mode"):
        compiled(gm, [torch.ones(2, 2)])
    with pytest.raises(AotUnsupported, match="functorch"):
        torch.vmap(lambda x: compiled(gm, [x])(x)[0])(torch.ones(3, 2, 2))


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view], ids=["conjugate", "negative"])
def test_inputs_whose_memory_holds_the_conjugate_or_negative(lazy, is_inference):
    def fn(x):
        return x @ x, x[1:], x.sin().real

    with torch.inference_mode(is_inference):
        x = lazy(torch.randn(2, 2, dtype=torch.complex64))
    results = compiled(graph_of(fn), [x])(x)
    for ours, eagers in zip(results, fn(x), strict=True):
        assert (ours.is_conj(), ours.is_neg()) == (eagers.is_conj(), eagers.is_neg())
        torch.testing.assert_close(ours, eagers)
    assert results[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_a_conjugate_input_is_changed():
    def fn(x):
        y = x.conj()
        y.mul_(2j)
        return y[0], x + 1

    memory, expected = (torch.ones(3, dtype=torch.complex64) * (1 + 2j) for _ in range(2))
    results = compiled(graph_of(fn), [memory.conj()])(memory.conj())
    eager = fn(expected.conj())
    assert torch.equal(memory, expected)
    assert all(map(torch.equal, results, eager))
    assert results[0].untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1j),
        lambda x: x[:1].mul_(2j),
        lambda x: x.view(2, 2).t().mul_(2j),
        lambda x: x.copy_(x.conj() * 2),
        lambda x: x.zero_(),
        lambda x: x.masked_fill_(x.real > 0, 2j),
        lambda x: x.imag.add_(x.real),
        lambda x: x.conj_physical_(),
        lambda x: torch.mul(x, 1j, out=x),
        lambda x: x.conj().add_(1j),
        lambda x: x.conj()[1:].mul_(2j),
        lambda x: torch._neg_view(x).add_(1j),
        lambda x: x.conj().imag.add_(1),
    ],
)
@pytest.mark.parametrize(
    "lazy",
    [torch.conj, torch._neg_view, lambda memory: memory.view(-1)],
    ids=["conjugate", "negative", "plain"],
)
def test_views_of_a_lazy_input_that_is_changed(lazy, change):
    def fn(x):
        early, view = x.conj().real, x.conj()
        change(x)
        view.mul_(2)
        return (
            early,
            view.imag + 1,
            x.imag,
            x.view(2, 2).real,
            torch.view_as_real(x.resolve_conj().resolve_neg()),
            x[1:].imag + 1,
        )

    memory, expected = (torch.arange(1, 5) * (1 + 2j) for _ in range(2))
    results = compiled(graph_of(fn), [lazy(memory)])(lazy(memory))
    eager = fn(lazy(expected))
    assert torch.equal(memory, expected)
    for ours, eagers in zip(results, eager, strict=True):
        assert (ours.is_conj(), ours.is_neg()) == (eagers.is_conj(), eagers.is_neg())
        assert torch.equal(ours, eagers)
    assert all(
        one.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr() for one in (results[0], *results[2:4])
    )


def test_lazy_views_of_what_the_graph_makes_are_changed():
    def fn(x):
        first, second, third = x + 1, x * 2, x.real * 2
        first.conj()[1:].mul_(2j)
        second.conj().add_(1j)
        torch._neg_view(third).add_(1)
        fourth = (x + 3).conj()
        fourth.add_(1j)
        return (
            first.imag,
            first.conj().imag,
            second.imag + 1,
            second.conj(),
            third,
            third.view(torch.int32),
            fourth.imag,
        )

    x = torch.arange(4) * (1 + 2j)
    for ours, eagers in zip(compiled(graph_of(fn), [x])(x), fn(x), strict=True):
        assert ours.is_conj() == eagers.is_conj() and torch.equal(ours, eagers)


def test_nested_output():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(((x,),))
    with pytest.raises(AotUnsupported, match="nested"):
        compiled(fx.GraphModule({}, graph), [torch.zeros(2)])


def test_wrong_arguments():
    gm = graph_of(lambda x, y: x + y)
    with pytest.raises(ValueError, match="takes 2 inputs, 1 examples"):
        compile_graph(gm, [torch.zeros(2)], compiler=Recording())
    with pytest.raises(TypeError, match="must be a tensor"):
        compile_graph(gm, [torch.zeros(2), 3], compiler=Recording())


def test_state_is_restored_after_a_refusal():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, True))
    graph.output((graph.call_function(operator.matmul, (x, x)),))
    with pytest.raises(AotUnsupported):
        compiled(fx.GraphModule({}, graph), [torch.zeros(2, 3)])
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    torch.autocast_increment_nesting()
    assert torch.autocast_decrement_nesting() == 0


@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_lstm_under_autocast_has_eagers_types(requires_grad):
    lstm = torch.nn.LSTM(4, 3, batch_first=True)
    weights = [weight.detach().requires_grad_(requires_grad) for weight in lstm.parameters()]

    rest = (True, 1, 0.0, True, False, True)
    graph = fx.Graph()
    placed = [graph.placeholder(f"p{at}") for at in range(3 + len(weights))]
    call = graph.call_function(torch.lstm, (placed[0], placed[1:3], placed[3:], *rest))
    graph.output(tuple(graph.call_function(operator.getitem, (call, at)) for at in range(3)))
    inputs = [torch.randn(2, 5, 4), torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), *weights]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            wanted = torch.lstm(inputs[0], inputs[1:3], weights, *rest)
        except RuntimeError as error:
            pytest.skip(f"eager has no kernel for this processor: {error}")
        found = compiled(fx.GraphModule(torch.nn.Module(), graph), inputs)(*inputs)
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype == two.dtype
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
@pytest.mark.parametrize("steps", [2, 30])
def test_an_lstm_is_one_call_in_either_direction_however_long(steps):
    lstm = torch.nn.LSTM(4, 3)
    weights = [weight.detach().requires_grad_() for weight in lstm.parameters()]

    def fn(x, h, c, w, r, b, d):
        return torch.lstm(x, (h, c), (w, r, b, d), True, 1, 0.0, True, False, False)[0]

    inputs = [torch.randn(steps, 2, 4), torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), *weights]
    recording = Recording()
    compile_graph(graph_of(fn), inputs, compiler=recording)(*inputs)[0].sum().backward()
    [forward], backward = recording.graphs["forward"], recording.graphs["backward"]
    calls = [node for graph in (forward, *backward) for node in graph.graph.nodes if node.op == "call_function"]
    layers = [str(node.target) for node in calls if "rec" in str(node.target)]
    assert layers == ["framesmith_aten.recurrent_layer.default", "framesmith_aten.recurrent_layer_backward.default"]
    assert len(calls) < 40


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_of_nothing(training):
    def fn(x, m, v, w, b):
        return F.batch_norm(x, m, v, w, b, training)

    inputs = [torch.randn(0, 4), torch.zeros(4), torch.ones(4), torch.ones(4), torch.zeros(4)]
    (found,) = compiled(graph_of(fn), inputs)(*inputs)
    assert found.shape == (0, 4) and inputs[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("view", [lambda x: x[..., ::2], lambda x: x[1:]])
def test_a_write_outside_of_what_the_input_shows_is_refused(view):
    def fn(x):
        x.as_strided((2, 2), (1, 2), 0).t().add_(1)
        return x * 1

    with pytest.raises(AotUnsupported, match="outside-view"):
        compiled(graph_of(fn), [view(torch.zeros(3, 8))])


@pytest.mark.parametrize(
    ("target", "rest"), [(F.max_pool1d, (2,)), (torch.max_pool1d, (2,)), (F.max_pool1d, (3, 2, 1))]
)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_pooling_of_a_transposed_input_is_laid_out_as_in_eager(target, rest, needs_grad):
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target, (x, *rest)),))
    for size in ((2, 4, 6), (3, 4), (1, 2, 8)):
        value = torch.randn(size).transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_(needs_grad)
        [found] = compiled(fx.GraphModule({}, graph), [value])(value)
        expected = target(value, *rest)
        assert found.stride() == expected.stride() and torch.equal(found, expected)


def test_pooling_that_gives_indices():
    gm = fx.GraphModule({}, fx.Graph())
    x = gm.graph.placeholder("x")
    both = gm.graph.call_function(F.max_pool1d, (x, 2), {"return_indices": True})
    gm.graph.output(tuple(gm.graph.call_function(operator.getitem, (both, at)) for at in (0, 1)))
    value = torch.randn(2, 4, 6)
    for one, two in zip(compiled(gm, [value])(value), F.max_pool1d(value, 2, return_indices=True), strict=True):
        assert torch.equal(one, two) and one.stride() == two.stride()


A = torch.ops.aten
#: Operators that are run through others, called by themselves: with parameters in their schema's order or by its names.
CALLED_BY_THEMSELVES = {
    "batch norm": (A.batch_norm.default, (None, None, torch.zeros(4), torch.ones(4), True, 0.1, 1e-5, True), {}),
    "one hot": (lambda x, n: A.one_hot.default((x > 0).long(), n) + x.sum(), (4,), {}),
    "maximum": (A.max.default, (), {}),
    "maximum and place": (lambda x: A.max.dim(x, 1)[0], (), {}),
    "maximum of two": (A.max.other, (torch.zeros(3, 4),), {}),
    "median": (A.median.default, (), {}),
    "prod": (A.prod.dim_int, (1, True), {}),
    "running sum": (lambda x, **named: A.cumsum.default(self=x, **named), (), {"dim": 1, "dtype": torch.float64}),
    "random": (lambda x, p: x * A.bernoulli.p(x.detach(), p), (0.3,), {}),
    "pooling": (A.max_pool1d.default, ([2],), {}),
    "rms norm": (A.rms_norm.default, ([4],), {}),
    "prod by names": (lambda x: A.prod.dim_int(self=x, dim=1, keepdim=True), (), {}),
    "one hot by names": (lambda x: A.one_hot.default(self=(x > 0).long(), num_classes=3) + x.sum(), (), {}),
    "addcmul by names": (lambda x: A.addcmul.default(self=x, tensor1=x, tensor2=x, value=2), (), {}),
    "chances in a tensor": (lambda x: x * A.bernoulli.Tensor(x.detach(), torch.full((3, 4), 0.3)), (), {}),
    "a chance, and where to": (lambda x: x + A.bernoulli.float_out(x.detach(), 0.3, out=torch.zeros(3, 4)), (), {}),
    "a maximum, and where to": (
        lambda x: A.max.dim_max(x.detach(), 1, max=torch.zeros(3), max_values=torch.zeros(3).long())[0] + x.sum(),
        (),
        {},
    ),
    "a part, and where to": (
        lambda x: x + A.slice_scatter.out(x.detach(), torch.ones(1, 4), 0, 0, 1, out=torch.zeros(3, 4)),
        (),
        {},
    ),
}


@pytest.mark.parametrize("name", CALLED_BY_THEMSELVES)
def test_operators_called_by_themselves(name):
    target, args, kwargs = CALLED_BY_THEMSELVES[name]
    run_both(graph_of(lambda x: target(x, *args, **kwargs)), [torch.randn(3, 4, requires_grad=True)])


def mapped(body, *operands):
    """Return a graph with one call: `torch.vmap` over a graph that it holds."""
    graph = fx.Graph()
    values = [graph.placeholder(f"x{at}") for at in range(len(operands))]
    held = graph.get_attr("body")
    call = graph.call_function(vmapped, (held, (0,) * len(values), (0,), "error", *values))
    graph.output((graph.call_function(operator.getitem, (call, 0)),))
    return fx.GraphModule({"body": fx.symbolic_trace(body)}, graph)


@pytest.mark.parametrize(
    "body",
    [
        lambda a, b: (a @ b * 2,),
        lambda a, b: ((a * b).add_(1).relu_(),),
        lambda a, b: (a.mul(2).softmax(-1).view(-1, 1) + b,),
        lambda a, b: (torch.where(a > 0, a, b * 0.1),),
    ],
)
def test_a_graph_within_a_graph(body):
    operands = [torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)]
    run_both(mapped(body, *operands), operands)


def test_gradients_of_a_graph_within():
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    call = graph.call_function(differentiated, (graph.get_attr("body"), 1, (0,), x, w))
    graph.output((graph.call_function(operator.getitem, (call, 0)), graph.call_function(operator.getitem, (call, 1))))
    gm = fx.GraphModule({"body": fx.symbolic_trace(lambda x, w: ((x.sin() * w).sum(),))}, graph)
    run_both(gm, [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)])


def test_a_refused_call_in_a_graph_within():
    graph = fx.Graph()
    graph.output((graph.call_method("requires_grad_", (graph.placeholder("a"),)),))
    gm = mapped(lambda a: (a,), torch.ones(2))
    gm.body = fx.GraphModule({}, graph)
    with pytest.raises(AotUnsupported, match="tensor-method"):
        compiled(gm, [torch.ones(2, 3)])
