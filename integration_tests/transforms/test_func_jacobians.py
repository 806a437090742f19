"""`torch.func.vjp`, `jvp`, `jacrev`, `jacfwd` and `hessian`, nested with all others, against eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import framesmith
from integration_tests.transforms.transforms import (
    Program,
    Programs,
    Tensor,
    m,
    outcome,
    output_of_new_process,
    plain,
    run,
    t,
)

pytestmark = pytest.mark.usefixtures("fresh")

PROGRAMS = Programs()
simple, program = PROGRAMS.simple, PROGRAMS.program


def f(x: Tensor) -> Tensor:
    return (x.sin() * x.sum()).tanh()


def energy(x: Tensor) -> Tensor:
    return f(x).square().sum()


def pulled(x: Tensor) -> Any:
    out, pull = vjp(f, x)
    return out, pull(out.cos())


def pulled_twice(x: Tensor) -> Any:
    _, pull = vjp(f, x)
    y = x.exp()
    return pull(y), pull(y * 2)


def pulled_for_each(x: Tensor) -> Any:
    out, pull = vjp(f, x)
    return vmap(pull)(torch.stack([out, x]))


def pulled_trees(x: Tensor) -> Any:
    out, pull = vjp(lambda d, y: {"a": d["x"] * y, "b": (d["z"].exp(),)}, {"x": x, "z": x * 2}, x.cos())
    return out, pull({"a": x, "b": (x + 1,)})


def pulled_with_others(x: Tensor) -> Any:
    out, pull, others = vjp(lambda a: (f(a), {"k": a * 2}), x, has_aux=True)
    return pull(out), others


def with_random_numbers(x: Tensor) -> Any:
    out, pull = vjp(lambda a: F.dropout(a * a, 0.5), x)
    return out, pull(x)


def without_history(x: Tensor) -> Any:
    _, pull = vjp(f, x)
    return pull(x, create_graph=False)


def under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        return jacrev(f)(x), grad(energy)(x), jvp(f, (x,), (x.cos(),))


simple("vjp", pulled, m(3))
simple("vjp, two calls", pulled_twice, m(3))
simple("vjp, no call", lambda x: vjp(f, x)[0] * 2, m(3))
simple("vjp, its function under vmap", pulled_for_each, m(3))
simple("vjp of structures", pulled_trees, m(3))
simple("vjp with others", pulled_with_others, m(3))
simple("vjp with random numbers", with_random_numbers, m(8))
simple("vjp of what does not depend on the argument", lambda x: vjp(lambda a: torch.ones(2), x)[1](torch.ones(2)), m(3))
simple("vjp without history", without_history, m(3))
simple("jvp", lambda x: jvp(f, (x,), (x.cos(),)), m(3))
simple("jvp of two", lambda x, y: jvp(lambda a, b: (a @ b, a.sum()), (x, y), (y.t(), x.t())), m(2, 3), m(3, 2))
simple("jvp with others", lambda x: jvp(lambda a: (f(a), (a * 2,)), (x,), (x.cos(),), has_aux=True), m(3))
simple("jvp, strict", lambda x: jvp(f, (x,), (x.cos(),), strict=True), m(3))
simple("jvp, the same", lambda x: jvp(lambda a: a, (x,), (x * 2,)), m(3))
simple("jvp of each", lambda x: vmap(lambda change: jvp(f, (x,), (change,))[1])(torch.stack([x, x.cos()])), m(3))
simple("jacrev", jacrev(f), m(3))
simple("jacrev, inside", lambda x: jacrev(f)(x.cos()) + 1, m(3))
simple("jacrev in chunks", lambda x: jacrev(f, chunk_size=2)(x), m(5))
simple("jacrev one by one", lambda x: jacrev(f, chunk_size=1)(x), m(3))
simple("jacrev into memory", lambda x: jacrev(f, chunk_size=2, _preallocate_and_copy=True)(x), m(5))
simple("jacrev of arguments", jacrev(lambda a, b: (a * b, a.sum()), argnums=(0, 1)), m(3), m(3))
simple("jacrev with others", jacrev(lambda a: (a * a, (a.sin(),)), has_aux=True), m(3))
simple("jacrev of structures", jacrev(lambda p, x: {"y": F.linear(x, *p)}), lambda: (t(2, 3), t(2)), m(4, 3))
simple("jacfwd", jacfwd(f), m(3))
simple("jacfwd of arguments", jacfwd(lambda a, b: (a * b, a.sum()), argnums=(1, 0)), m(3), m(3))
simple("jacfwd with others", jacfwd(lambda a: (a * a, (a.sin(),)), has_aux=True), m(3))
simple("jacfwd with random numbers", jacfwd(lambda a: a * torch.rand(3), randomness="same"), m(3))
simple("hessian", hessian(energy), m(3))
simple("hessian, inside", lambda x: hessian(energy)(x.cos()).diagonal(), m(3))
simple("hessian of arguments", hessian(lambda a, b: (a * b * b).sum(), argnums=(0, 1)), m(3), m(3))
simple("jacrev of jacrev", jacrev(jacrev(f)), m(3))
simple("jacfwd of jacfwd", jacfwd(jacfwd(f)), m(3))
simple("jacrev of each", vmap(jacrev(f), in_dims=1, out_dims=1), m(3, 4))
simple("jacrev of vmap", jacrev(vmap(f)), m(2, 3))
simple("grad of vjp", grad(lambda x: vjp(f, x)[1](x)[0].sum()), m(3))
simple("grad of jvp", grad(lambda x: jvp(f, (x,), (x.cos(),))[1].sum()), m(3))
simple("Hessian and vector", lambda x: jvp(grad(energy), (x,), (x.cos(),)), m(3))
simple("without gradients around", under_no_grad, m(3))


@program
def captured() -> Program:
    w = t(3, 3)
    return jacrev(lambda x: (x @ w).tanh()), [(t(3),)]


@program
def laplacian() -> Program:
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    return lambda x: vmap(lambda a: hessian(lambda b: net(b).squeeze())(a).diagonal().sum())(x), [(plain(6, 2),)]


@program
def tangent_kernel() -> Program:
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))

    def kernel(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        one, other = (vmap(jacrev(lambda q, a: functional_call(net, q, (a,))), (None, 0))(p, at) for at in (x, y))
        return sum(  # type: ignore[return-value]
            (torch.einsum("naf,mbf->nmab", one[k].flatten(2), other[k].flatten(2)) for k in p), start=torch.zeros(())
        )

    params = {name: one.detach().clone().requires_grad_() for name, one in net.named_parameters()}
    return kernel, [(params, plain(3, 3), plain(2, 3))]


@program
def newton() -> Program:
    def step(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x - torch.linalg.solve(hessian(energy)(x) + 3 * torch.eye(3), grad(energy)(x))
        return x

    return step, [(t(3),)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    run(PROGRAMS[name]())
    stats = framesmith.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0)


#: Programs for whose operators torch has no rule for symbolic sizes.
UNRULED = ("vjp with random numbers", "jacrev of jacrev")
#: Programs whose sizes are in their code.
FIXED = ("jacfwd with random numbers", "captured", "laplacian", "tangent_kernel", "newton", *UNRULED)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in FIXED])
def test_symbolic_sizes(name: str) -> None:
    run(PROGRAMS[name](), dynamic=True)


def test_one_graph_for_all_sizes() -> None:
    compiled = framesmith.compile(jacrev(f), dynamic=True, fullgraph=True)
    for size in (3, 5, 8):
        x = plain(size)
        torch.testing.assert_close(compiled(x), jacrev(f)(x))
    assert framesmith.stats()["graphs"] == 1


def raises(x: Tensor) -> Tensor:
    raise ValueError("mine")


def changed(x: Tensor) -> Tensor:
    x.mul_(2)
    return x * x


def other_structure(x: Tensor) -> Any:
    return vjp(f, x)[1]((x,))


def another_size(x: Tensor) -> Any:
    return vjp(f, x)[1](x[:2])


def changed_before_the_pull(x: Tensor) -> Any:
    y = x * 2
    _, pull = vjp(lambda a: (a * y).sin(), x)
    y.add_(1)
    return pull(x)


def changed_argument(x: Tensor) -> Any:
    y = x * 2
    _, pull = vjp(lambda a: a * a, y)
    y.add_(1)
    return pull(x)


def freed(x: Tensor) -> Any:
    _, pull = vjp(f, x)
    return pull(x, retain_graph=False), pull(x)


def outlives(x: Tensor) -> Any:
    out, pull = vjp(f, x)
    print(end="")
    return out, pull(x)


BREAKS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "no tensor": ("function-not-differentiated", lambda x: vjp(lambda a: 3.0, x)),
    "a number as argument": ("function-not-differentiated", lambda x: vjp(lambda a, b: a * b, x, 2.0)[0]),
    "no pair": ("function-not-differentiated", lambda x: vjp(f, x, has_aux=True)),
    "another argument": ("function-not-differentiated", jacrev(f, argnums=5)),
    "another structure of cotangents": ("function-not-differentiated", other_structure),
    "another structure of tangents": ("function-not-differentiated", lambda x: jvp(f, (x,), (x, x))),
    "a list of arguments": ("function-not-differentiated", lambda x: jvp(f, [x], [x])),  # type: ignore[arg-type]
    "another size of cotangents": ("operation-failed", another_size),
    "another size of tangents": ("operation-failed", lambda x: jvp(f, (x,), (x[:2],))),
    "independent, strictly": ("operation-failed", lambda x: jvp(lambda a: x * 2, (x,), (x,), strict=True)),
    "integers": ("operation-failed", lambda x: jacrev(lambda y: y * 2)(x.long())),
    "the last argument, forward": ("function-not-differentiated", jacfwd(lambda a: a.sin(), argnums=-1)),
    "freed": ("operation-failed", freed),
    "a number of data": ("body-reads-number", jacrev(lambda x: x * x.sum().item())),
    "a condition": ("asks-batched-tensor", jacfwd(lambda x: x * 2 if x.sum() > 0 else x * 3)),
    "asks": ("asks-batched-tensor", lambda x: jvp(lambda a: a * 2 if a.requires_grad else a, (x,), (x,))),
    "raises": ("body-raises", jacrev(raises)),
    "raises forward": ("body-raises", lambda x: jvp(raises, (x,), (x,))),
    "changes its argument": ("body-changes-tensor", jacrev(changed)),
    "outlives the graph": ("pullback-outlives-graph", lambda x: vjp(f, x)),
}


def shown(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The function, without functions in its results."""

    def without(x: Tensor) -> Any:
        found = function(x)
        return found[0] if isinstance(found, tuple) and callable(found[1]) else found

    return without


@pytest.mark.parametrize("name", BREAKS)
def test_it_runs_eagerly(name: str) -> None:
    kind, function = BREAKS[name]
    compiled = framesmith.compile(function)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for _ in range(3):
            x = torch.arange(-2.0, 4.0)
            assert outcome(shown(compiled), x.clone()) == outcome(shown(function), x.clone())
    assert not [one for one in reported if "failed to compile" in str(one.message)]
    framesmith.reset()
    with pytest.raises(Exception, match=rf"\[{kind}\]"):
        framesmith.compile(function, fullgraph=True)(torch.arange(-2.0, 4.0))
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert framesmith.compile(lambda x: x + 1, fullgraph=True)(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("function", [changed_before_the_pull, changed_argument, outlives])
def test_as_eager_mode(function: Callable[[Tensor], Any]) -> None:
    compiled = framesmith.compile(function)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.arange(-2.0, 4.0)), function(torch.arange(-2.0, 4.0)))


@pytest.mark.parametrize("derived", [pulled, lambda x: jvp(f, (x,), (x.cos(),)), jacrev(f), jacfwd(f)])
def test_second_derivatives_through_the_call(derived: Callable[[Tensor], Any]) -> None:
    def function(x: Tensor) -> Tensor:
        return sum(one.square().sum() for one in torch.utils._pytree.tree_leaves(derived(x)))  # type: ignore[return-value]

    found = []
    for call in (function, framesmith.compile(function, fullgraph=True)):
        x = torch.arange(1.0, 4.0, requires_grad=True)
        [first] = torch.autograd.grad(call(x), x, create_graph=True)
        found.append([first.detach(), *torch.autograd.grad(first.sum(), x)])
    torch.testing.assert_close(*found)


FIRST_OF_A_PROCESS = """
import sys, torch, framesmith
from torch.func import jacrev, vmap
compiled = framesmith.compile(vmap(jacrev(lambda x: x.sin() * x.sum())), backend="eager", fullgraph=True)
for _ in range(2):
    compiled(torch.ones(2, 3))
print(framesmith.stats()["graphs"], "torch._dynamo" in sys.modules)
"""


def test_the_first_of_a_process_is_compiled_once_and_without_torchs_compiler() -> None:
    assert output_of_new_process(FIRST_OF_A_PROCESS).split() == ["1", "False"]
