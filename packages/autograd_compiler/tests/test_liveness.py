"""Tensors saved for a derivative are freed once it has run, as in the engine."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from harness import identity

from framesmith_aten.contract import Runner
from framesmith_autograd_compiler import capture, disabled

LENGTH = 8


def boxed(gm):
    """Run a graph by a function that frees its arguments itself, and notes how many are left before each call."""

    def run(arguments):
        names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        values = dict(zip(names, arguments, strict=True))
        arguments.clear()
        interpreter = torch.fx.Interpreter(gm, garbage_collect_values=True)
        return interpreter.run(*[values.pop(name) for name in names], enable_io_processing=False)

    return Runner(lambda *arguments: run([*arguments]), boxed=run)


def saved_factors(x, refs):
    """Return the leaf multiplied by factors that only the graph holds."""
    for _ in range(LENGTH):
        factor = torch.randn(4)
        x = x * factor
        refs.append(weakref.ref(factor))
        yield x


def saved_results(x, refs):
    """Return a chain of exponentials, which save their results."""
    for _ in range(LENGTH):
        x = x.exp()
        storage = x.untyped_storage()._weak_ref()
        refs.append(lambda storage=storage: None if torch.UntypedStorage._expired(storage) else storage)
        yield x


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def saved_by_a_function(x, refs):
    for _ in range(LENGTH):
        factor = torch.randn(4)
        x = Scaled.apply(x, factor)
        refs.append(weakref.ref(factor))
        yield x


CHAINS = [saved_factors, saved_results, saved_by_a_function]


def live_at_hooks(chain, **options):
    """Return how many of the saved tensors are alive when each hook of a pass runs."""
    torch.manual_seed(0)
    refs, live = [], []
    leaf = torch.randn(4, requires_grad=True)
    for x in chain(leaf, refs):
        x.register_hook(lambda grad: live.append(sum(ref() is not None for ref in refs)))
    loss = x.sum()
    del x
    loss.backward(**options)
    return live


@pytest.mark.parametrize("compiler", [identity, boxed])
@pytest.mark.parametrize("chain", CHAINS)
def test_as_many_saved_tensors_live_as_in_the_engine(chain, compiler):
    gc.collect()
    expected = live_at_hooks(chain)
    with capture(compiler) as seen:
        found = [live_at_hooks(chain) for _ in range(3)]
    assert expected == [*range(LENGTH, 0, -1)]
    assert found == [expected] * 3 and not seen.fallbacks


@pytest.mark.parametrize("chain", CHAINS)
def test_a_retained_graph_keeps_them(chain):
    with capture(identity):
        assert live_at_hooks(chain, retain_graph=True) == live_at_hooks(chain, retain_graph=True) == [LENGTH] * LENGTH


@pytest.mark.parametrize("fails", [False, True], ids=["compiled", "call by call"])
def test_within_one_segment(fails):
    """A derivative counts what is alive when it runs: in a boxed function, and where calls run one by one."""
    live, refs = [], []

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(factor)
            return x * factor

        @staticmethod
        def evaluate_backward(saved, grads):
            if type(grads[0]) is torch.Tensor:
                live.append(sum(ref() is not None for ref in refs))
            return saved[0] * grads[0], None

        @staticmethod
        def backward(ctx, grad):
            return Counting.evaluate_backward(ctx.saved_tensors, [grad])

    def compiler(gm):
        if fails:
            raise NotImplementedError("planted")

        def run(arguments):
            values = {}
            for node in gm.graph.nodes:
                if node.op == "placeholder":
                    values[node] = arguments.pop(0)
                elif node.op == "call_function":
                    values[node] = node.target(*[values.get(arg, arg) for arg in node.args])
                    live.append(sum(ref() is not None for ref in refs))
                    for source in node.all_input_nodes:
                        values.pop(source, None) if source.op == "placeholder" else None
                else:
                    return [values[result] for result in node.args[0]]

        return Runner(lambda *arguments: run([*arguments]), boxed=run)

    for _ in range(2):
        live.clear(), refs.clear()
        x = torch.randn(4, requires_grad=True)
        for _ in range(LENGTH):
            factor = torch.randn(4)
            x = Counting.apply(x, factor)
            refs.append(weakref.ref(factor))
        del factor
        warned = pytest.warns(UserWarning, match="planted") if fails else contextlib.nullcontext()
        with capture(compiler), warned:
            x.sum().backward()
        assert live[-LENGTH:] == [*range(LENGTH, 0, -1)], live


def test_an_address_used_again_is_no_input():
    """Inputs die during the pass, and a gradient at the address of one is taken without a copy all the same."""
    addresses = []

    def compiler(gm):
        def run(*arguments):
            found = gm(*arguments)
            addresses.append({one.data_ptr() for one in found})
            return found

        return run

    leaves = [torch.randn(4, requires_grad=True) for _ in range(20)]
    with capture(compiler):
        for _ in range(3):
            for leaf in leaves:
                leaf.grad = None
            sum((leaf * torch.randn(4)).sum() for leaf in leaves).backward()
            assert {leaf.grad.data_ptr() for leaf in leaves} <= addresses[-1]


def test_a_hook_changes_one_of_two_equal_gradients():
    """The gradient of a sum is one tensor for both leaves: neither takes it while the other still needs it."""
    found = []

    def tenfold(leaf):
        leaf.grad.mul_(10)

    for captured in (False, True):
        w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        for leaf in (w, v):
            leaf.register_post_accumulate_grad_hook(tenfold)
        with capture(identity) if captured else disabled():
            (w * 2 + v * 2).sum().backward()
            (w + v).sum().backward()
        found.append((w.grad.tolist(), v.grad.tolist()))
    assert found[0] == found[1]


def test_a_gradient_that_the_program_holds_is_copied():
    w = torch.ones(3, requires_grad=True)
    seed = torch.full((3,), 2.0)
    with capture(identity):
        for _ in range(2):
            w.grad = None
            w.view(3).backward(seed)
            assert w.grad.tolist() == [2.0] * 3
            w.grad.zero_()
    assert seed.tolist() == [2.0] * 3
