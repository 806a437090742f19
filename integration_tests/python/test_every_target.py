"""Every callable is a target: results equal eager's, and something is compiled or one warning says why not."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import framesmith

X = torch.linspace(-1, 1, 8)
Y = X.reshape(2, 4)


class Scale:
    k = 2

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k

    @staticmethod
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    def plus_k(cls, x: torch.Tensor) -> torch.Tensor:
        return x + cls.k

    def minus_k(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.k


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin()


def plus_one(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs) + 1

    return wrapped


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def times(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


#: name -> (target, arguments, keywords): one graph, no break
WHOLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "cross_entropy": (F.cross_entropy, (Y, torch.tensor([0, 3])), {}),
    "layer_norm": (F.layer_norm, (X, (8,)), {}),
    "gelu": (F.gelu, (X,), {}),
    "softmax": (F.softmax, (X,), {"dim": 0}),
    "interpolate": (F.interpolate, (X.reshape(1, 1, 8),), {"scale_factor": 2}),
    "mse_loss": (F.mse_loss, (X, X + 1), {}),
    "attention": (F.scaled_dot_product_attention, (Y[None], Y[None], Y[None]), {}),
    "torch.add": (torch.add, (X, 1), {"alpha": 2}),
    "torch.sin": (torch.sin, (X,), {}),
    "torch.einsum": (torch.einsum, ("i,i->", X, X), {}),
    "torch.stack": (torch.stack, ([X, X],), {}),
    "torch.linalg.norm": (torch.linalg.norm, (X,), {}),
    "torch.meshgrid": (torch.meshgrid, (X, X), {"indexing": "ij"}),
    "operator.add": (operator.add, (X, 1), {}),
    "functools.reduce": (functools.reduce, (operator.add, [X, X, X]), {}),
    "sum": (sum, ([X, X],), {}),
    "Tensor.add": (torch.Tensor.add, (X, 2), {}),
    "an operator": (torch.ops.aten.add, (X, X), {}),
    "an overload": (torch.ops.aten.sin.default, (X,), {}),
    "tree_map": (torch.utils._pytree.tree_map, (torch.sin, {"a": X}), {}),
    "a decorated function": (torch.no_grad()(times), (X, 2.0), {}),
    "functools.wraps": (plus_one(F.relu), (X,), {}),
    "a partial": (functools.partial(F.leaky_relu, negative_slope=0.5), (X,), {}),
    "a partial of a partial": (functools.partial(functools.partial(torch.add, X), alpha=2), (X,), {}),
    "a partial of a module": (functools.partial(Net(), X), (), {}),
    "an object": (Scale(), (X,), {}),
    "a static method": (Scale.plus_one, (X,), {}),
    "a class method": (Scale.plus_k, (X,), {}),
    "a method": (Scale().minus_k, (X,), {}),
    "a function of a class": (Scale.minus_k, (Scale(), X), {}),
    "Function.apply": (Square.apply, (X,), {}),
    "forward of a class": (nn.Linear.forward, (nn.Linear(8, 2), X), {}),
    "a module's call": (Net().__call__, (X,), {}),
    "a module's method": (Net().encode, (X,), {}),
    "flex_attention": (flex_attention, (torch.ones(1, 2, 16, 8),) * 3, {}),
    "compiled": (framesmith.compile(times, dynamic=True), (X, 2.0), {}),
    "compiled, of a library": (framesmith.compile(F.gelu), (X,), {}),
    "compiled method": (framesmith.compile(Scale().minus_k), (X,), {}),
    "compiled object": (framesmith.compile(Scale()), (X,), {}),
    "compiled module's method": (framesmith.compile(Net()).encode, (X,), {}),
    "compiled module's forward": (framesmith.compile(Net()).forward, (X,), {}),
    "a partial of what is compiled": (functools.partial(framesmith.compile(times), k=2), (X,), {}),
    "a partial of a compiled method": (functools.partial(framesmith.compile(Scale().minus_k), X), (), {}),
    "a partial of a compiled module": (functools.partial(framesmith.compile(Net()), X), (), {}),
}

#: The same where nothing is compiled, or there are breaks: name -> (..., a part of the reason)
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "print": (print, (), {"end": ""}, "print"),
    "numpy": (np.sin, (np.ones(3),), {}, "numpy.ufunc"),
    "max": (max, (X[0], X[1]), {}, "a branch depends"),
    "torch.jit.script": (torch.jit.script(times), (X, 2.0), {}, "TorchScript has compiled it"),
    "a scripted module": (torch.jit.script(nn.Linear(8, 2)), (X,), {}, "TorchScript has compiled it"),
    "disabled": (framesmith.disable(times), (X, 2.0), {}, "disabled"),
}


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    framesmith.reset()
    yield
    framesmith.reset()


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, (torch.Tensor, np.ndarray)):
        return bool(np.allclose(np.asarray(found.tolist()), np.asarray(wanted.tolist()), atol=1e-5))
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, dict):
        return bool(found.keys() == wanted.keys()) and all(same(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", WHOLE)
def test_a_call_is_one_graph(name: str) -> None:
    target, args, kwargs = WHOLE[name]
    wanted = target(*args, **kwargs)
    framesmith.reset()
    compiled = framesmith.compile(target, fullgraph=True, strict=True)
    for _ in range(2):
        assert same(compiled(*args, **kwargs), wanted)
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"], stats["recompilations"]) == (1, 0, 0)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_compiled_says_so_once(name: str) -> None:
    target, args, kwargs, reason = OTHERS[name]
    wanted = target(*args, **kwargs)
    framesmith.reset()
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        compiled = framesmith.compile(target)
        for _ in range(3):
            assert same(compiled(*args, **kwargs), wanted)
    ours = [str(w.message) for w in reported if issubclass(w.category, framesmith.FramesmithWarning)]
    assert len(ours) == 1 and "nothing of it is compiled" in ours[0] and reason in ours[0]
    assert reported[0].filename == __file__
    assert framesmith.stats()["breaks"] <= 1
    with pytest.raises(RuntimeError, match="fullgraph=True, but"):
        framesmith.compile(target, fullgraph=True)(*args, **kwargs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("scheduled", [False, True])
def test_the_step_of_an_optimizer(optimizer: type[torch.optim.Optimizer], scheduled: bool) -> None:
    results = []
    for compile in (lambda target: target, functools.partial(framesmith.compile, fullgraph=True, strict=True)):
        net = Net()
        made = optimizer(net.parameters(), lr=0.1)  # type: ignore[call-arg]
        schedule = torch.optim.lr_scheduler.StepLR(made, 2) if scheduled else None
        step = compile(made.step)
        for _ in range(4):
            made.zero_grad()
            net(X).sum().backward()
            step()
            if schedule is not None:
                schedule.step()
        results.append(net.linear.weight.detach())
    assert torch.allclose(*results, atol=1e-4) and framesmith.stats()["graphs"] in (1, 2, 3)


def test_running_averages_of_a_model() -> None:
    results = []
    for compile in (lambda target: target, framesmith.compile):
        net = Net()
        average = torch.optim.swa_utils.AveragedModel(net)
        update = compile(average.update_parameters)
        for factor in range(3):
            with torch.no_grad():
                net.linear.weight.add_(factor)
            update(net)
        results.append(average.module.linear.weight.detach())
    assert torch.allclose(*results)


def test_one_function_of_a_library_is_compiled_once() -> None:
    for _ in range(12):
        framesmith.compile(F.gelu)(X)
    assert framesmith.stats()["graphs"] == 1


def test_it_looks_like_the_target() -> None:
    for target in (F.softmax, F.cross_entropy, torch.vmap(times)):
        compiled = framesmith.compile(target)
        assert (compiled.__name__, compiled.__doc__) == (target.__name__, target.__doc__)
        assert inspect.signature(compiled) == inspect.signature(target)
    assert framesmith.compile(torch.add).__name__ == "add"
    assert isinstance(framesmith.compile(functools.partial(times, k=1)), functools.partial)
    assert framesmith.compile(Scale().minus_k).__self__.k == 2


def test_attributes_of_a_partial_stay() -> None:
    partial = functools.partial(times, k=3)
    functools.update_wrapper(partial, times)
    compiled = framesmith.compile(partial)
    assert (compiled.__name__, compiled.keywords) == ("times", {"k": 3})


@pytest.mark.parametrize("target", [F.gelu, torch.add, Scale.plus_one, Scale().minus_k])
def test_copies_and_pickles(target: Callable[..., Any]) -> None:
    compiled = framesmith.compile(target)
    args = (X, 1) if target is torch.add else (X,)
    for again in (copy.copy(compiled), copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.allclose(again(*args), target(*args))


def test_as_an_attribute_of_a_class_and_of_a_module() -> None:
    class Layer(nn.Module):
        bound = framesmith.compile(lambda self, x: x * self.k)
        k = 3

        def __init__(self) -> None:
            super().__init__()
            self.act = framesmith.compile(F.gelu)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.bound(x))

    layer = Layer()
    wanted = F.gelu(X * 3)
    assert torch.allclose(layer(X), wanted, atol=1e-6)
    assert torch.allclose(framesmith.compile(layer, fullgraph=True)(X), wanted, atol=1e-6)
    assert torch.allclose(framesmith.compile(lambda x: Layer.bound(layer, x), fullgraph=True)(X), X * 3)
    assert torch.allclose(pickle.loads(pickle.dumps(layer.act))(X), F.gelu(X))


def test_gradients_reach_the_arguments_of_a_librarys_function() -> None:
    found = []
    for run in (F.layer_norm, framesmith.compile(F.layer_norm, fullgraph=True)):
        x = X.clone().requires_grad_()
        run(x, (8,)).square().sum().backward()
        found.append(x.grad)
    assert torch.allclose(*found, atol=1e-5)


def test_sizes_become_symbols() -> None:
    compiled = framesmith.compile(F.gelu, fullgraph=True)
    for size in (4, 5, 9, 17):
        assert torch.allclose(compiled(torch.ones(size)), F.gelu(torch.ones(size)))
    assert framesmith.stats()["frames_compiled"] == 2


def test_errors_are_eagers() -> None:
    for target, args in ((torch.add, ("a", 1)), (F.softmax, (3, 4)), (Scale(), ())):
        with pytest.raises(Exception) as wanted:
            target(*args)
        with pytest.raises(type(wanted.value)) as found:
            framesmith.compile(target)(*args)
        assert str(found.value) == str(wanted.value)
