"""Hooks of modules, forward and backward, their own and global ones, against eager mode: values, gradients, order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

import framesmith

pytestmark = pytest.mark.usefixtures("fresh")

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8)
#: The hooks that ran.
RAN: list[Any] = []


def noting(*name: Any, result: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a hook that notes its name, and returns a result of its arguments."""

    def hook(*args: Any) -> Any:
        RAN.append(name)
        return None if result is None else result(*args)

    return hook


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        out: Tensor = self.linear(x) * scale
        return out


class Outer(nn.Module):
    """Calls a module with keywords, and is hooked inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scaled = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scaled(x, scale=3.0)
        return out


class Pair(nn.Module):
    """Takes and returns two tensors with gradients, and a number."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, int]:
        return a * b.exp(), a - b, 3


class OfPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, x: Tensor) -> Tensor:
        a, b, n = self.pair(x.sin(), x.cos())
        return a * b * n


class Keeping(nn.Module):
    """Registers a hook at each call, and keeps its handle."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.handle = net(), None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.net[0](x)
        self.handle = hidden.register_hook(noting("kept", result=lambda g: g * 2))
        out: Tensor = self.net[2](hidden)
        return out


def forward_pre() -> nn.Module:
    model = net()
    model[1].register_forward_pre_hook(noting("pre", result=lambda module, args: args[0] * 2))
    return model


def forward_pre_with_kwargs() -> nn.Module:
    model = Outer()
    change = noting("kwargs", result=lambda module, args, kwargs: (args, {"scale": kwargs["scale"] + 1}))
    model.scaled.register_forward_pre_hook(change, with_kwargs=True)
    return model


def forward_prepended() -> nn.Module:
    model = Outer()
    model.scaled.register_forward_hook(noting(1, result=lambda module, args, out: out * 2))
    model.scaled.register_forward_hook(
        noting(2, result=lambda module, args, kwargs, out: out + kwargs["scale"]), with_kwargs=True, prepend=True
    )
    return model


def forward_always() -> nn.Module:
    model = net()
    model[0].register_forward_hook(noting("always", result=lambda module, args, out: out + 1), always_call=True)
    return model


def backward() -> nn.Module:
    model = net()
    model[1].register_full_backward_hook(noting("full", result=lambda module, grads, outer: (grads[0] * 2,)))
    return model


def backward_pre() -> nn.Module:
    model = net()
    model[1].register_full_backward_pre_hook(noting("pre", result=lambda module, grads: (grads[0] * 3,)))
    return model


def backward_nested() -> nn.Module:
    model = net()
    for index, module in enumerate([model, *model]):
        module.register_full_backward_pre_hook(noting("pre", index))
        module.register_full_backward_hook(noting("first", index))
        module.register_full_backward_hook(noting("second", index), prepend=True)
    return model


def backward_and_tensor_hooks() -> nn.Module:
    model = net()
    model[0].register_forward_hook(lambda module, args, out: out.register_hook(noting("tensor")) and None)
    model[0].register_full_backward_hook(noting("module"))
    return model


def backward_shown() -> nn.Module:
    """The hook sees the gradients of the module's arguments and results."""
    model = net()
    model[2].register_full_backward_hook(lambda module, grads, outer: RAN.append((grads[0].sum().item(), len(outer))))
    return model


def several_tensors() -> nn.Module:
    model = OfPair()
    model.pair.register_full_backward_hook(noting("pair", result=lambda module, grads, outer: (grads[0] * 2, grads[1])))
    return model


def several_nested() -> nn.Module:
    """Hooks of both kinds on a module of several tensors, and around it."""
    model = several_tensors()
    model.pair.register_full_backward_pre_hook(
        noting("pre", result=lambda module, grads: (grads[0], grads[1] * 3, None))
    )
    model.register_full_backward_hook(noting("around"))
    return model


class Unequal(nn.Module):
    """Hooks a module of several tensors of which the loss needs one, one has no gradient, and one is computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = OfAll()

    def forward(self, x: Tensor) -> Tensor:
        rows = (x.detach() * 0 + torch.arange(8)).long()
        a, _, _ = self.inner(x, rows, x.detach().cos(), x)
        return a * x


class OfAll(nn.Module):
    def forward(self, x: Tensor, rows: Tensor, c: Tensor, again: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[rows] * c, x * again, rows + 1


def unequal() -> nn.Module:
    model = Unequal()
    model.inner.register_full_backward_hook(
        noting("unequal", result=lambda module, grads, outer: (grads[0] * 2, *grads[1:3], grads[3] - 1))
    )
    model.inner.register_full_backward_hook(
        lambda module, grads, outer: RAN.append([one is None for one in (*grads, *outer)])
    )
    return model


def handle_kept() -> nn.Module:
    return Keeping()


@pytest.fixture
def global_hooks() -> Iterator[None]:
    register = torch_modules
    handles = [
        register.register_module_forward_pre_hook(noting("global pre")),
        register.register_module_forward_hook(noting("global", result=lambda module, args, out: out * 1.5)),
        register.register_module_full_backward_pre_hook(noting("global backward pre")),
        register.register_module_full_backward_hook(noting("global backward")),
    ]
    yield
    for handle in handles:
        handle.remove()


WHOLE = [
    forward_pre, forward_pre_with_kwargs, forward_prepended, forward_always, backward, backward_pre, backward_nested,
    backward_and_tensor_hooks, backward_shown, several_tensors, several_nested, unequal, handle_kept,
]  # fmt: skip


def outcome(call: Callable[[Tensor], Tensor], model: nn.Module, *, twice: bool, gradient: bool = True) -> list[Any]:
    """Return what ran, the result, and gradients; `twice`: second ones; `gradient`: the input has one."""
    RAN.clear()
    model.zero_grad()
    x = X.clone().requires_grad_(gradient)
    out = call(x)
    if twice:
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        ((first * first).sum() + out.sum()).backward()
    else:
        out.sum().backward()
    return [[*RAN], out.detach(), x.grad, [p.grad for p in model.parameters()]]


def check(model: nn.Module, *, fullgraph: bool = True, calls: int = 2, gradient: bool = True, **options: Any) -> None:
    compiled = framesmith.compile(model, strict=True, fullgraph=fullgraph, **options)
    for twice in (False, True) if gradient else (False,):
        for _ in range(calls):
            ran, *got = outcome(compiled, model, twice=twice, gradient=gradient)
            expected, *want = outcome(model, model, twice=twice, gradient=gradient)
            assert ran == expected
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("made", WHOLE, ids=lambda made: made.__name__)
def test_one_graph(made: Callable[[], nn.Module], backend: str) -> None:
    check(made(), **({} if backend == "default" else {"backend": backend}))


def test_global_hooks(global_hooks: None) -> None:
    check(net())


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("made", [backward, backward_pre, backward_nested], ids=lambda made: made.__name__)
def test_input_without_gradient(made: Callable[[], nn.Module]) -> None:
    model = made() if made is not backward else net()
    model[0].register_full_backward_hook(
        lambda module, grads, outer: RAN.append([grad is None for grad in (*grads, *outer)])
    )
    check(model, gradient=False)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_output_may_not_be_changed_in_place(backend: str) -> None:
    """Eager mode refuses it: the output is a view made by an autograd.Function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
    model[0].register_full_backward_hook(noting("linear"))
    options: Any = {} if backend == "default" else {"backend": backend}
    for call in (model, framesmith.compile(model, strict=True, **options)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"BackwardHookFunction.* is a view and is being modified inplace"):
                call(X.clone().requires_grad_())
        with torch.no_grad():
            torch.testing.assert_close(call(X), model[0](X).relu())


def test_hooks_are_guarded() -> None:
    """Hooks added, replaced and removed between the calls."""
    model = net()
    compiled = framesmith.compile(model, strict=True, fullgraph=True)
    handles: list[Any] = []
    for factor in (2, 3, 4):
        handles.append(model[0].register_forward_hook(lambda module, args, out, factor=factor: out * factor))
        handles.append(
            model[1].register_full_backward_hook(lambda module, grads, outer, factor=factor: (grads[0] * factor,))
        )
        got, want = (outcome(call, model, twice=False) for call in (compiled, model))
        torch.testing.assert_close(got[1:], want[1:])
        for handle in handles[::3]:
            handle.remove()
        got, want = (outcome(call, model, twice=False) for call in (compiled, model))
        torch.testing.assert_close(got[1:], want[1:])


def test_always_called() -> None:
    """A hook with `always_call` runs though forward raises."""

    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 4:
                raise ValueError("four")
            return x.sin()

    model = Refusing()
    model.register_forward_hook(lambda module, args, out: RAN.append(out is None), always_call=True)
    compiled = framesmith.compile(model, strict=True)
    ran = []
    for call in (compiled, model):
        RAN.clear()
        for rows in (8, 4, 4, 8):
            if rows == 8:
                call(X[:rows])
                continue
            with pytest.raises(ValueError, match="four"):
                call(X[:rows])
        ran.append([*RAN])
    assert ran[0] == ran[1] == [False, True, True, False]


def test_kept_handle_removes_its_hook() -> None:
    model = Keeping()
    compiled = framesmith.compile(model, strict=True, fullgraph=True)
    for removed in (False, True):
        found = []
        for call in (compiled, model):
            x = X.clone().requires_grad_()
            out = call(x)
            assert model.handle is not None
            if removed:
                model.handle.remove()
            out.sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)


class Registering(nn.Module):
    """Registers hooks of all kinds on its modules at each call, and removes some."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.kept: Any = None

    def forward(self, x: Tensor) -> Tensor:
        first, relu, last = self.net
        handles = [
            first.register_forward_hook(noting("out", result=lambda module, args, out: out * 2)),
            first.register_forward_hook(lambda module, args, kwargs, out: out + 1, with_kwargs=True, prepend=True),
            relu.register_forward_pre_hook(noting("pre", result=lambda module, args: args[0] * 3)),
            last.register_full_backward_hook(noting("full", result=lambda module, grads, outer: (grads[0] * 2,))),
        ]
        y = self.net(x)
        with relu.register_full_backward_pre_hook(noting("within")):
            y = y + relu(x).sum()
        for handle in handles:
            handle.remove()
        handles[0].remove()
        return y + self.net(x)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_registered_and_removed_in_the_trace(backend: str) -> None:
    """The second graph is for `_is_full_backward_hook`, which a first call sets."""
    model = Registering()
    check(model, **({} if backend == "default" else {"backend": backend}))
    assert not any(one._forward_hooks or one._backward_hooks or one._forward_pre_hooks for one in model.net)
    assert framesmith.stats()["breaks"] == 0
    assert framesmith.stats()["graphs"] <= 3


def test_registered_in_the_trace_and_kept() -> None:
    """The hook and its handle outlive the call."""

    def function(model: nn.Sequential, x: Tensor) -> Any:
        handle = model[0].register_forward_hook(noting("kept", result=lambda module, args, out: out * 2))
        model[2].register_forward_pre_hook(noting("also"), prepend=True)
        return model(x).sum(), handle

    for call in (function, framesmith.compile(function, strict=True, fullgraph=True)):
        RAN.clear()
        model = net()
        _, handle = call(model, X)
        assert [*model[0]._forward_hooks] == [handle.id]
        want = model(X)
        handle.remove()
        assert not model[0]._forward_hooks
        assert len(model[2]._forward_pre_hooks) == 1
        assert RAN == [("kept",), ("also",)] * 2
        torch.testing.assert_close(want, model[2](model[1](model[0](X) * 2)))


class Replacing(nn.Module):
    """Replaces the hooks that it registered at the call before; `register` gives handles."""

    def __init__(self, register: Callable[[nn.Sequential], list[Any]], *, late: bool = False) -> None:
        super().__init__()
        self.net, self.register, self.late = net(), register, late
        self.handles: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin() + self.net(x).sum() if self.late else x
        for handle in reversed(self.handles):
            handle.remove()
        self.handles[:] = self.register(self.net)
        out: Tensor = self.net(x)
        return out


def replaced_of_all_kinds(layers: nn.Sequential) -> list[Any]:
    return [
        layers[1].register_forward_pre_hook(noting("pre", result=lambda module, args: (args[0] * 2,))),
        layers[1].register_forward_hook(noting("out", result=lambda module, args, out: out + 1)),
        layers[0].register_full_backward_hook(noting("full", result=lambda module, grads, outer: (grads[0] * 3,))),
        layers[2].register_full_backward_pre_hook(noting("before", result=lambda module, grads: (grads[0] * 0.5,))),
    ]


def replaced_on_one_module(layers: nn.Sequential) -> list[Any]:
    return [
        layers[1].register_forward_hook(noting("first", result=lambda module, args, out: out * 2)),
        layers[1].register_forward_hook(noting("second", result=lambda module, args, out: out + 1)),
        layers[1].register_forward_hook(noting("front", result=lambda module, args, out: out - 3), prepend=True),
    ]


def replaced_with_options(layers: nn.Sequential) -> list[Any]:
    change = noting("kwargs", result=lambda module, args, kwargs: ((args[0] * 2,), kwargs))
    return [
        layers[1].register_forward_pre_hook(change, with_kwargs=True),
        layers[1].register_forward_pre_hook(noting("plain", result=lambda module, args: (args[0] + 1,))),
        layers[2].register_forward_hook(lambda module, args, kwargs, out: out * 2, with_kwargs=True, prepend=True),
    ]


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("register", [replaced_of_all_kinds, replaced_on_one_module, replaced_with_options])
def test_replaced_hooks_are_compiled_once_more(register: Callable[[nn.Sequential], list[Any]], late: bool) -> None:
    """A hook that is registered again has another number, which is no reason to compile again."""
    found = []
    models = [Replacing(register, late=late) for _ in range(2)]
    for model, call in zip(
        models, (models[0], framesmith.compile(models[1], strict=True, fullgraph=True)), strict=True
    ):
        found.append([outcome(call, model, twice=False) for _ in range(6)])
    assert [one[0] for one in found[1]] == [one[0] for one in found[0]]
    torch.testing.assert_close([one[1:] for one in found[1]], [one[1:] for one in found[0]])
    assert framesmith.stats()["graphs"] <= 3  # without hooks, with the flag of a first registration, with hooks


def test_a_number_that_is_read_is_guarded() -> None:
    model = net()
    handle = model[1].register_forward_hook(lambda module, args, out: out * 2)
    other = model[1].register_forward_hook(lambda module, args, out: out + 1)

    def function(first: Any, second: Any, x: Tensor) -> Any:
        known = first.id in model[1]._forward_hooks, second.id in model[1]._forward_hooks
        return (
            float(model(x).sum().detach() * (first.id + 1)),
            first.id == second.id,
            known,
            {first.id: 1, second.id: 2},
        )

    compiled = framesmith.compile(function, strict=True)
    for first, second in ((handle, other), (other, handle), (handle, handle)):
        assert str(compiled(first, second, X)) == str(function(first, second, X))
    other.remove()
    assert str(compiled(handle, other, X)) == str(function(handle, other, X))


def test_what_a_hooked_module_takes_is_made_by_one_node() -> None:
    model = several_tensors()
    out = framesmith.compile(model, fullgraph=True)(X.clone().requires_grad_())
    names, waiting = set[Any](), [out.grad_fn]
    for node in waiting:
        names.add(node)
        waiting += [one for one, _ in node.next_functions if one is not None and one not in names]  # type: ignore[union-attr]
    assert sum(type(node).__name__ == "CompiledGraphNodeBackward" for node in names) == 3


def test_two_results_of_a_hooked_module_of_which_one_is_computed_from_the_other() -> None:
    class Chained(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            first = x.sin()
            return first, first.exp() * x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Chained()

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.inner(x * 2)
            return first * second

    model = Outer()
    model.inner.register_full_backward_pre_hook(noting("pre", result=lambda module, grads: (grads[0] * 2, grads[1])))
    check(model)
