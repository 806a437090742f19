"""`aot_function`, `aot_module` and `make_boxed`: what guards separate, what graphs hold, what is refused."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from torch import fx, nn

from framesmith_aot import AotUnsupported, TooManyEntries, aot_function, aot_module, make_boxed
from framesmith_aten.meta import DERIVATIVE_OF


def graph(gm, inputs):
    return gm


def values(count=1, **options):
    torch.manual_seed(0)
    found = tuple(torch.randn(3, 4, **options) for _ in range(count))
    return found if count > 1 else found[0]


class Compilers:
    """Compilers that count the graphs they get."""

    def __init__(self):
        self.got = []

    def of(self, role):
        return lambda gm, inputs: (self.got.append((role, len(inputs))), gm)[1]


def test_results_keep_their_structure():
    def fn(pair, *, scale):
        x, y = pair
        return {"sum": x + y, "parts": (x * scale, [y.t(), 7, None])}

    x, y = values(2)
    found = aot_function(fn, graph)((x, y), scale=3)
    torch.testing.assert_close(found, fn((x, y), scale=3))
    assert found["parts"][1][0].data_ptr() == y.data_ptr()


def test_each_role_has_its_compiler():
    compilers = Compilers()
    fn = aot_function(
        lambda x, w: (x @ w).relu(),
        compilers.of("forward"),
        compilers.of("backward"),
        inference_compiler=compilers.of("inference"),
    )
    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    with torch.no_grad():
        fn(x, w)
    fn(x, w).sum().backward()
    assert [role for role, _ in compilers.got] == ["inference", "forward", "backward"]


def test_guards_separate_metadata_constants_modes_and_identity():
    fn = aot_function(lambda x, y, k=1: x * k + y, graph)
    x, y = values(2)
    calls = [
        lambda: fn(x, y),
        lambda: fn(x.double(), y.double()),
        lambda: fn(x[:2], y[:2]),
        lambda: fn(x, y, 2),
        lambda: fn(x, x),
        lambda: fn(x.clone().requires_grad_(), y),
    ]
    for count, call in enumerate(calls, 1):
        call()
        call()
        assert len(fn.entries) == count
    with torch.autocast("cpu", torch.bfloat16):
        fn(x, y)
    assert len(fn.entries) == len(calls) + 1
    assert "sizes" in fn.explain(x[:1], y[:1]) and fn.explain(x, y) is None


def test_inputs_that_come_to_overlap_are_compiled_again():
    def fn(x, y):
        x.add_(1)
        return y * 2

    compiled, memory = aot_function(fn, graph), torch.zeros(8)
    compiled(torch.zeros(4), torch.zeros(4))
    with pytest.raises(AotUnsupported, match="aliased-inputs"):
        compiled(memory[:4], memory[2:6])
    assert torch.equal(compiled(memory[:4], memory[4:]), torch.zeros(4)) and torch.equal(memory[:4], torch.ones(4))


def test_dynamic_sizes_share_an_entry():
    fn = aot_function(lambda x: x.reshape(-1).sum() / x.shape[0], graph, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, rows + 1, requires_grad=True)
        found = fn(x)
        torch.testing.assert_close(found, x.sum() / rows)
        torch.testing.assert_close(torch.autograd.grad(found, x)[0], torch.full_like(x, 1 / rows))
    assert len(fn.entries) == 1


def test_too_many_kinds_of_arguments_are_an_error():
    fn = aot_function(lambda x, k: x + k, graph)
    with pytest.raises(TooManyEntries, match="dynamic=True"):
        for k in range(100):
            fn(torch.ones(1), k)


def test_modules_read_their_parameters_at_each_call():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    twin = copy.deepcopy(module)
    compiled, x = aot_module(module, graph), values()
    for _ in range(2):
        for one in (compiled, twin):
            torch.manual_seed(1)
            one(x).sum().backward()
        module[0].weight = nn.Parameter(module[0].weight.detach() * 2)
        twin[0].weight = nn.Parameter(twin[0].weight.detach() * 2)
    assert len(compiled.entries) == 1
    torch.testing.assert_close(module.state_dict(), twin.state_dict())
    torch.testing.assert_close(module[0].bias.grad, twin[0].bias.grad)
    module.eval(), twin.eval()
    torch.testing.assert_close(compiled(x), twin(x))
    assert len(compiled.entries) == 2


def test_a_compiled_module_has_the_state_of_the_module_and_can_be_copied():
    for module in (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4))),
    ):
        compiled, x = aot_module(module, graph).eval(), values()
        assert [*compiled.state_dict()] == [f"compiled_module.{name}" for name in module.state_dict()]
        twin = copy.deepcopy(compiled)
        assert not twin.training and not twin.compiled_module.training
        with torch.no_grad():
            next(twin.parameters()).zero_()
        torch.testing.assert_close(compiled(x), module(x))
        torch.testing.assert_close(twin(x), twin.compiled_module(x))
        assert not torch.equal(compiled(x), twin(x))


def test_graph_modules_of_every_form():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return {"y": self.layer(x), "z": (x, [x.sum()])}

    root = nn.Module()
    root.inner, root.act = fx.symbolic_trace(Inner()), nn.GELU()
    outer = fx.GraphModule(root, fx.Graph())
    outer.inner, outer.act = root.inner, root.act
    given = outer.graph.placeholder("x")
    called = outer.graph.call_module("inner", (given,))
    y = outer.graph.call_function(operator.getitem, (called, "y"))
    outer.graph.output((outer.graph.call_module("act", (y,)), called))
    outer.recompile()
    x = values()
    compiled = aot_module(outer, graph)
    torch.testing.assert_close(compiled(x), outer(x))
    bare = fx.symbolic_trace(nn.Linear(4, 2))
    torch.testing.assert_close(aot_module(bare, graph)(x), bare(x))


def test_nodes_name_lines_and_modules_in_forward_and_backward_graphs():
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return gm

    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh()))
    aot_module(module, keep)(values()).sum().backward()
    aot_function(lambda x: (x * 3).exp(), keep)(values(requires_grad=True)).sum().backward()
    for one, key in zip(graphs[:2], ("nn_module_stack", "fwd_nn_module_stack"), strict=True):
        paths = {path for node in one.graph.nodes for path in node.meta.get(key, ())}
        assert paths >= {"0", "1.0"}
    for one, key in zip(graphs[2:], ("stack_trace", DERIVATIVE_OF.name), strict=True):
        calls = [node for node in one.graph.nodes if node.op == "call_function"]
        assert any("(x * 3).exp()" in node.meta.get(key, "") for node in calls)


def test_tensors_of_closures_are_inputs():
    state = torch.ones(3, 4)
    fn = aot_function(lambda x: x + state, graph)
    x = values()
    assert torch.equal(fn(x), x + 1)
    state.add_(1)
    assert torch.equal(fn(x), x + 2)


def test_boxed_functions_get_the_list():
    seen = []

    def compiler(gm, inputs):
        run = make_boxed(gm)

        def boxed(args):
            found = run(args)
            seen.append(len(args))
            return found

        boxed._boxed_call = True
        return boxed

    x = values()
    assert torch.equal(aot_function(torch.sin, compiler)(x), x.sin()) and seen == [0]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


def with_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one * 2, lambda one: one):
        return x.sin()


def in_inference(x):
    with torch.inference_mode():
        return x + 1


@pytest.mark.parametrize(
    ("fn", "id"),
    [
        (lambda x: Double.apply(x), "autograd-function"),
        (lambda x: torch.func.vmap(torch.sin)(x), "functorch"),
        (lambda x: setattr(x, "data", x + 1), "attribute-set"),
        (lambda x: x if x.sum() > 0 else -x, "data-dependent"),
        (lambda x: x * x.sum().item(), "data-dependent"),
        (with_hooks, "saved-tensor-hooks"),
        (in_inference, "inference-mode"),
        (lambda x: (torch.manual_seed(3), x + torch.rand(3, 4))[1], "seed"),
        (lambda x: x + torch.ones(5), "trace-error"),
        (lambda x: f"{x}", "tensor-method"),
    ],
)
def test_what_a_flat_graph_cannot_hold_is_refused(fn, id):
    with pytest.raises(AotUnsupported) as caught:
        aot_function(fn, graph)(values(requires_grad=True))
    assert caught.value.id == id


def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ x.t()
    return y, z, x @ x.t()


def in_no_grad(x):
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


@pytest.mark.parametrize(
    "fn",
    [
        in_autocast,
        in_no_grad,
        lambda x: torch.stack([row * len(x) for row in x]),
        lambda x: x.T.contiguous().view(-1)[x.numel() // 2 :],
        lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0],
        lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x),
        lambda x: x[x > 0].sum(),
    ],
)
def test_functions_equal_eager_mode(fn):
    sides = []
    for call in (fn, aot_function(fn, graph)):
        torch.manual_seed(5)
        x = values(requires_grad=True)
        results = call(x)
        flat = results if isinstance(results, tuple) else (results,)
        gradient = torch.autograd.grad(flat, x, [torch.ones_like(one) for one in flat])
        sides.append((results, gradient, torch.get_rng_state()))
    torch.testing.assert_close(*sides)


def test_wrong_arguments_are_named_at_the_door():
    with pytest.raises(TypeError, match="use aot_module"):
        aot_function(nn.Linear(2, 2), graph)
    with pytest.raises(TypeError, match="functions go to aot_function"):
        aot_module(torch.sin, graph)
    with pytest.raises(TypeError, match="not a function"):
        aot_function(torch.sin, lambda gm, inputs: 3)(values())


def test_table_names_views_and_writes():
    def fn(x, w):
        x.mul_(2)
        return x @ w, w.t(), x

    compiled = aot_function(fn, graph)
    compiled(torch.randn(3, 3), torch.randn(3, 3, requires_grad=True))
    table = compiled.entries[0].graph.table
    assert "overwritten" in table and "view of input 1: t()" in table and "input 0 itself" in table
