"""Backward passes: partial, repeated, with strided gradients, twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, graph_of


def parameters(*sizes):
    torch.manual_seed(0)
    return [torch.randn(*size, requires_grad=True) for size in sizes]


def two_parts(x, w):
    return x.sin(), w.cos() * 2


def test_unused_output_gives_no_gradient():
    x, w = parameters((3,), (3,))
    graph = compiled(graph_of(two_parts), [x, w])
    first, _ = graph(x, w)
    grads = torch.autograd.grad(first.sum(), [x, w], allow_unused=True)
    assert grads[1] is None
    torch.testing.assert_close(grads[0], x.cos())


def test_every_pattern_of_used_outputs():
    def fn(x, w):
        y = x * w
        return y.exp(), y.sum(0), F.softmax(y @ w.t(), -1)

    inputs = parameters((3, 4), (3, 4))
    graph = compiled(graph_of(fn), inputs)
    for used in ([0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        loss = sum(fn(*inputs)[at].pow(2).sum() for at in used)
        ours = sum(graph(*inputs)[at].pow(2).sum() for at in used)
        for one, two in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(ours, inputs)):
            torch.testing.assert_close(one, two)


def test_retained_graph_gives_the_same_twice():
    inputs = parameters((3, 4), (4, 5))
    (out,) = compiled(graph_of(lambda x, w: F.gelu(x @ w)), inputs)(*inputs)
    once = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(out.sum(), inputs)
    for one, two in zip(once, second):
        assert torch.equal(one, two)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), inputs)


@pytest.mark.parametrize(
    "seed",
    [
        lambda: torch.ones(()).expand(4, 6),
        lambda: torch.randn(6, 4).t(),
        lambda: torch.randn(8, 12)[::2, ::2],
        lambda: torch.eye(6)[:4].to_sparse(),
    ],
    ids=["expanded", "transposed", "strided", "sparse"],
)
def test_gradient_of_any_layout(seed):
    def fn(x, w):
        return torch.tanh((x @ w).view(24).view(4, 6))

    inputs = parameters((4, 5), (5, 6))
    torch.manual_seed(1)
    grad = seed()
    (ours,) = compiled(graph_of(fn), inputs)(*inputs)
    for one, two in zip(
        torch.autograd.grad(fn(*inputs), inputs, grad.to_dense()), torch.autograd.grad(ours, inputs, grad)
    ):
        torch.testing.assert_close(one, two)


def test_gradients_accumulate_into_shared_parameter():
    def fn(x, w):
        return F.relu(x @ w) @ w

    x, w = parameters((3, 4), (4, 4))
    graph = compiled(graph_of(fn), [x, w])
    for _ in range(2):
        graph(x, w)[0].sum().backward()
    ours, w.grad = w.grad, None
    for _ in range(2):
        fn(x, w).sum().backward()
    torch.testing.assert_close(ours, w.grad)


def test_parameter_passed_twice():
    (w,) = parameters((4, 4))
    graph = compiled(graph_of(lambda a, b: (a @ b.t(), b)), [w, w])
    out, same = graph(w, w)
    assert same is w
    out.sum().backward()
    ours, w.grad = w.grad, None
    (w @ w.t()).sum().backward()
    torch.testing.assert_close(ours, w.grad)


def test_result_overwritten_before_backward_is_an_error_as_in_eager():
    (x,) = parameters((3,))
    (out,) = compiled(graph_of(lambda x: x.exp()), [x])(x)
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_multi_output_view_saved_before_its_base_is_mutated_is_an_error_as_in_eager():
    def fn(x, w):
        whole = x * w
        used = whole.unbind()[1].sin().sum()
        whole[0].mul_(2)
        return used

    x, w = parameters((3, 2), (2,))
    [total] = compiled(graph_of(fn), [x, w])(x, w)
    torch.testing.assert_close(total, fn(x, w))
    for result in (total, fn(x, w)):
        with pytest.raises(RuntimeError, match="another view of its base has been modified inplace"):
            result.backward()


def test_result_overwritten_where_eager_does_not_save_it():
    def fn(x, w):
        y = x * 2
        return y, (y + 1).sin() * w

    x, w = parameters((3,), (3,))
    results = []
    for function in (compiled(graph_of(fn), [x, w]), fn):
        y, z = function(x, w)
        y.detach().add_(5)
        results.append(torch.autograd.grad(z.sum(), [x, w]))
    for one, two in zip(*results):
        torch.testing.assert_close(one, two)


def test_input_overwritten_where_eager_does_not_save_it():
    def fn(x, w):
        return (x + 1).sin() * w

    results = []
    for make in (lambda x, w: compiled(graph_of(fn), [x, w])(x, w)[0], fn):
        x, w = parameters((3,), (3,))
        h = x * 1
        z = make(h, w)
        h.detach().add_(5)
        results.append(torch.autograd.grad(z.sum(), [x, w]))
    for one, two in zip(*results):
        torch.testing.assert_close(one, two)


def test_backward_is_compiled_when_first_needed():
    inputs = parameters((3, 4), (4, 5))
    roles = []

    def compiler(gm, vals, role):
        roles.append(role)
        return lambda args: gm(*args)

    from framesmith_aot import compile_graph

    (out,) = compile_graph(graph_of(lambda x, w: x @ w), inputs, compiler=compiler)(*inputs)
    assert roles == ["forward"]
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert roles == ["forward", "backward"]


def test_a_backward_graph_that_fails_to_compile_runs_uncompiled():
    from framesmith_aot import compile_graph

    def compiler(gm, vals, role):
        if role == "backward":
            raise ValueError("planted")
        return lambda args: gm(*args)

    inputs, reports = parameters((3, 4), (4, 5)), []
    gm = graph_of(lambda x, w: ((x @ w).sin(), w.cos()))

    def gradients(**options):
        outs = compile_graph(gm, inputs, compiler=compiler, **options)(*inputs)
        return [torch.autograd.grad(out.sum(), inputs, retain_graph=True, allow_unused=True) for out in outs]

    with pytest.raises(ValueError, match="planted"):
        gradients()
    found = gradients(on_error=lambda what, error: reports.append((what, str(error))))
    assert reports == [("a graph (backward)", "planted")] * 2
    expected = [torch.autograd.grad(out.sum(), inputs, allow_unused=True) for out in gm(*inputs)]
    torch.testing.assert_close(found, expected)


def test_saved_tensor_hooks_see_what_is_saved():
    (x,) = parameters((3,))
    graph = compiled(graph_of(lambda x: x.exp().sin()), [x])
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        compiled(graph_of(lambda x: x.exp()), [x])
        assert not packed, "tracing must not call the user's hooks"
        (out,) = graph(x)
    assert packed
    out.sum().backward()
    torch.testing.assert_close(x.grad, (x.exp().cos() * x.exp()).detach())


@pytest.mark.parametrize("retain", [False, True])
def test_saved_tensors_are_freed_as_the_backward_program_goes(retain):
    import weakref

    from framesmith_aot import compile_graph

    freed = []

    def compiler(gm, vals, role):
        def run(args):
            if role == "forward":
                results = gm(*args)
                watched.append(weakref.ref(results[-1]))
                return results
            own = list(args)
            args.clear()
            grads = gm(*own)
            own.clear()
            freed.append(watched[-1]() is None)
            return grads

        return run

    watched = []
    inputs = parameters((3, 4), (4, 5))
    (out,) = compile_graph(graph_of(lambda x, w: (x @ w).exp().sum(0)), inputs, compiler=compiler)(*inputs)
    out.sum().backward(retain_graph=retain)
    assert freed == [not retain]
    if retain:
        out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def through_imaginary_part(y):
    z = torch.complex(torch.zeros_like(y), y)
    return (z.conj() * (1 + 2j)).imag.sum()


def negated_view(y):
    return torch._neg_view(y * 2).sum()


@pytest.mark.parametrize("loss", [through_imaginary_part, negated_view])
@pytest.mark.parametrize("fn", [lambda x: (x * x).sum(), lambda x: x.sin()])
def test_gradients_that_are_lazy_negatives(fn, loss):
    (x,) = parameters((3,))
    (wanted,) = torch.autograd.grad(loss(fn(x)), x)
    (found,) = torch.autograd.grad(loss(compiled(graph_of(fn), [x])(x)[0]), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.filterwarnings("ignore::framesmith_aot.errors.SecondDerivativeWarning")
def test_many_gradients_at_once(create_graph):
    (x,) = parameters((3, 3))
    fn = lambda x: (x @ x).sin()  # noqa: E731
    many = torch.randn(2, 3, 3)
    options = {"is_grads_batched": True, "create_graph": create_graph}
    (wanted,) = torch.autograd.grad(fn(x), x, many, **options)
    (y,) = compiled(graph_of(fn), [x])(x)
    (found,) = torch.autograd.grad(y, x, many, **options)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("fn", [lambda x: x * 1j, lambda x: (x * 2j).exp(), lambda x: 1j / (x + 2), lambda x: x / 3j])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_complex_numbers(fn, dtype):
    x = torch.tensor([0.5, -1.5], dtype=dtype, requires_grad=True)
    (wanted,) = torch.autograd.grad(fn(x).abs().sum(), x)
    (found,) = torch.autograd.grad(compiled(graph_of(fn), [x])(x)[0].abs().sum(), x)
    torch.testing.assert_close(found, wanted)


def test_unsaved_memory_beside_a_written_view_may_be_mutated():
    def fn(x, w):
        h = x.clone()
        h[:, 0].mul_(w)
        return h.sum() + x.sin().sum(), x.cos()

    x, w = parameters((2, 3), (2,))
    found = []
    for run in (fn, compiled(graph_of(fn), [x, w])):
        y, other = run(x, w)
        other.add_(1)
        found.append(torch.autograd.grad(y, [x, w]))
    torch.testing.assert_close(*found)


def test_gradients_that_are_zero_tensors() -> None:
    x = torch.linspace(-1, 1, 3, requires_grad=True)
    run = compiled(graph_of(lambda x: ((x * 2).sin(), x.sgn() * x)), [x])
    [given] = torch.autograd.grad(x.sgn().sum(), x)
    assert given._is_zerotensor()
    first, second = run(x)
    [grad] = torch.autograd.grad(first.sgn().sum() + second.sum(), x, retain_graph=True)
    torch.testing.assert_close(grad, x.detach().sgn())
    [grad] = torch.autograd.grad(first, x, given, retain_graph=True)
    assert torch.equal(grad, torch.zeros(3))


def test_a_matmul_whose_gradient_is_a_zero_tensor() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    [result] = compiled(graph_of(lambda x: (torch.inner(x * 2, x * 2).sgn(),)), [x])(x)
    [grad] = torch.autograd.grad(result.sum(), x)
    assert torch.equal(grad, torch.zeros(2, 4))


@pytest.mark.parametrize(
    "fn", [lambda x: x.amin(), lambda x: x.double().amax((0, 1)) * x.amax(), lambda x: (x * 1).abs().clamp(1).amax(1)]
)
@pytest.mark.parametrize("result", [False, True])
def test_the_backward_pass_reads_the_present_contents_of_memory_that_the_user_holds(fn, result):
    """After a mutation through `.data`: eager mode computes masks and counts when the pass runs."""

    def both(x):
        held = x * 1
        return held, fn(held)

    found = []
    for compiles in (False, True):
        x = torch.linspace(-2, 2, 6).view(2, 3).requires_grad_()
        if result:
            held, out = compiled(graph_of(both), [x])(x) if compiles else both(x)
        else:
            held = x * 1
            [out] = compiled(graph_of(fn), [held])(held) if compiles else [fn(held)]
        held.data.view(-1)[0] = held.data.view(-1)[-1] = 9.0
        out.sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("fn", [torch.relu, torch.sqrt, torch.reciprocal, torch.sigmoid, lambda x: x.mul_(2).relu_()])
@pytest.mark.parametrize("more", [False, True])
def test_a_result_that_eager_saves_is_not_recomputed(fn, more):
    """Eager mode saves its operands too, but reads the contents of the result when the pass runs."""

    def program(x, w):
        y = fn(x * w + 1)
        return (y, y * y) if more else (y,)

    found = []
    inputs = [torch.linspace(low, 2, 6).view(2, 3).requires_grad_() for low in (-2, 0.1)]
    for call in (program, compiled(graph_of(program), inputs)):
        results = call(*inputs)
        results[0].data.add_(2)
        found.append(torch.autograd.grad([one.sum() for one in results], inputs))
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (3, 4)])
@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b, c: torch.stack([a, b, c]).sin(),
        lambda a, b, c: torch.cat([a.view(-1), b.view(-1), c.view(-1)]) * 2,
        lambda a, b, c: torch.empty_like(torch.stack([a, b, c])).copy_(torch.stack([c, b, a])),
        lambda a, b, c: (torch.stack([a, b]).exp(), torch.stack([b, c])),
        lambda a, b, c: torch.hstack([a, b, c]).tanh(),
        lambda a, b, c: torch.stack([a, a, b, c]).square(),
    ],
)
def test_gradients_are_parts_of_one_tensor_where_they_are_in_eager(fn, shape):
    """None is copied, and each has its offset in the memory of that tensor."""
    found = []
    for compiles in (False, True):
        leaves = [torch.ones(shape, requires_grad=True) for _ in range(3)]
        results = compiled(graph_of(fn), leaves)(*leaves) if compiles else fn(*leaves)
        results = results if isinstance(results, tuple | list) else [results]
        grads = torch.autograd.grad([result.square().sum() for result in results], leaves)
        memory = [grad.untyped_storage().data_ptr() for grad in grads]
        grads[0].mul_(5)
        found.append(([memory.index(one) for one in memory], [one.storage_offset() for one in grads], *grads))
    torch.testing.assert_close(*found)


def refused_trunk(x):
    trunk = x.exp()
    one, two = trunk.sin(), trunk * 2
    trunk.add_(1)
    return one, two, x * 3


def refused_trunk_that_is_returned(x):
    trunk = torch.linalg.vector_norm(x, 2, -1)
    one = trunk.sin() * x.sum()
    trunk.fill_(0)
    return one, trunk


def results_of_each_other(x):
    trunk = x.sigmoid()
    one = trunk + 1
    two = one * 2
    trunk.zero_()
    return one, two, x.sin()


def trunk_without_derivative(x):
    trunk = torch.heaviside(x, x)
    return trunk * 2, trunk + 1, x * 2


@pytest.mark.parametrize("losses", [[0], [1], [-1], None])
@pytest.mark.parametrize(
    "fn", [refused_trunk, refused_trunk_that_is_returned, results_of_each_other, trunk_without_derivative]
)
def test_nodes_before_a_refusing_node_run(fn, losses):
    """Hooks on results run before the engine reaches the node that refuses."""
    found = []
    for compiles in (False, True):
        x = torch.linspace(0.1, 1, 6).view(2, 3).requires_grad_()
        reports = []
        results = compiled(graph_of(fn), [x])(x) if compiles else fn(x)
        for at, result in enumerate(results):
            result.register_hook(lambda grad, at=at, reports=reports: reports.append((at, grad)))
        message = ""
        try:
            sum(results[at].square().sum() for at in losses or range(len(results))).backward()
        except RuntimeError as error:
            message = str(error)
        found.append((message, [at for at, _ in reports], [grad for _, grad in reports], x.grad))
    assert found[0][:2] == found[1][:2]
    torch.testing.assert_close(found[0][2:], found[1][2:])
