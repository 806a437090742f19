"""Functions under `torch.vmap` that no graph can hold: they run eagerly, once, with eager mode's errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith.torch_backend import framesmith_backend
from integration_tests.transforms.transforms import Tensor, outcome

pytestmark = pytest.mark.usefixtures("fresh")

vmap = torch.vmap
#: Makes a function of a tensor, with all that it changes.
Make = Callable[[], Callable[[Tensor], Any]]
PROGRAMS: dict[str, tuple[str, Make]] = {}


def program(kind: str) -> Callable[[Make], Make]:
    """A program of which the graph breaks of this kind."""

    def enter(make: Make) -> Make:
        PROGRAMS[make.__name__] = (kind, make)
        return make

    return enter


def simple(name: str, kind: str, function: Callable[..., Any], **options: Any) -> None:
    PROGRAMS[name] = (kind, lambda: vmap(function, **options))


class WithoutRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class Box:
    n = 0


def raises(a: Tensor) -> Tensor:
    raise ValueError("mine")


def with_no_grad(a: Tensor) -> Tensor:
    with torch.no_grad():
        c = a.sin()
    return a * c


def hooked(a: Tensor) -> Tensor:
    b = a * 2
    b.register_hook(lambda grad: grad * 3)
    return b


def caught(a: Tensor) -> Tensor:
    try:
        return a if a > 0 else a * 2
    except RuntimeError:
        return a * 3


def changed(a: Tensor) -> Tensor:
    a.add_(1)
    return a * 2


def changed_view(a: Tensor) -> Tensor:
    a[0].mul_(3)
    return a * 2


def filled(a: Tensor) -> Tensor:
    made = torch.zeros(3)
    made.add_(a)
    return made


weight = torch.arange(1.0, 4.0)
simple("item", "body-reads-number", lambda a: a * a.sum().item())
simple("condition", "asks-batched-tensor", lambda a: a * 2 if a.sum() > 0 else a)
simple("condition caught", "asks-batched-tensor", caught)
simple("random error", "operation-failed", lambda a: a + torch.rand(3))
simple("dropout error", "operation-failed", lambda a: F.dropout(a, 0.5))
simple("nonzero", "operation-failed", lambda a: a.nonzero())
simple("function without rule", "autograd-function", lambda a: WithoutRule.apply(a) * 2)
simple("batch with dimension None", "operation-failed", lambda a: (a * 2, a), out_dims=(0, None))
simple("no tensor", "body-raises", lambda a: 3)
simple("results and dimensions", "text-of-object", lambda a: (a, a), out_dims=(0, 0, 0))
simple("raises", "body-raises", raises)
simple("no_grad", "body-changes-mode", with_no_grad)
simple("hook", "tensor-autograd-state", hooked)
simple("changes its argument", "body-changes-tensor", changed)
simple("changes a view of it", "body-changes-tensor", changed_view)
simple("fills what is no batch", "refused-on-real-data", filled)
simple("strides", "asks-batched-tensor", lambda a: a * (a + 1).stride(0))
simple("contiguity", "asks-batched-tensor", lambda a: a * 2 if (a + 1).is_contiguous() else a * 3)
simple("is a view", "body-differs", lambda a: a * 2 if a._is_view() else a * 3)
simple("is batched", "unsupported-call", lambda a: a * 2 if torch._C._functorch.is_batchedtensor(a) else a)
simple("level", "asks-transform-level", lambda a: a * (torch._C._functorch.maybe_current_level() or 9))
simple("jacobian within", "not-inlined", torch.func.jacrev(lambda a: a.sin() * a))


@program("asks-batched-tensor")
def gradients_asked() -> Callable[[Tensor], Any]:
    w = torch.ones(3, requires_grad=True)
    return vmap(lambda a: a * 2 if (a * w).requires_grad else a * 3)


@program("body-effect")
def list_changed() -> Callable[[Tensor], Any]:
    seen: list[int] = []
    return lambda x: (vmap(lambda a: (seen.append(1), a * 2)[1])(x), len(seen))


@program("body-effect")
def variable_changed() -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        n = 0

        def body(a: Tensor) -> Tensor:
            nonlocal n
            n += 1
            return a * n

        return vmap(body)(x), n

    return f


@program("body-effect")
def attribute_changed() -> Callable[[Tensor], Any]:
    box = Box()

    def body(a: Tensor) -> Tensor:
        box.n += 1
        return a * box.n

    return lambda x: (vmap(body)(x), box.n)


@program("body-effect")
def tensor_kept() -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        kept: list[Tensor] = []
        y = vmap(lambda a: (kept.append(a * 2), a * 3)[1])(x)
        return y, len(kept)

    return f


@program("body-tensor-escapes")
def tensor_sent_out() -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        def collector() -> Any:
            value = None
            while True:
                got = yield value
                value = got if value is None else value * 2

        sent = collector()
        next(sent)
        y = vmap(lambda a: (sent.send(a * 2), a * 3)[1])(x)
        sent.send(None)
        return y

    return f


@program("body-changes-tensor")
def captured_changed() -> Callable[[Tensor], Any]:
    w = torch.ones(3)

    def body(a: Tensor) -> Tensor:
        w.add_(1)
        return a * w

    return lambda x: (vmap(body)(x), w)


@program("body-changes-tensor")
def statistics() -> Callable[[Tensor], Any]:
    norm = nn.BatchNorm1d(3)
    return lambda x: (vmap(norm, randomness="same")(x.reshape(2, 2, 3)), norm.running_mean)


@program("body-changes-tensor")
def inner_changes_outer() -> Callable[[Tensor], Any]:
    def outer(a: Tensor) -> Tensor:
        total = a * 2
        inner = vmap(lambda b: total.add_(1) * b)(a)
        return inner + total

    return vmap(outer)


@program("print")
def prints() -> Callable[[Tensor], Any]:
    return vmap(lambda a: (print("once"), a * 2)[1])


@program("batch-without-examples")
def no_batch() -> Callable[[Tensor], Any]:
    return lambda x: vmap(lambda a: a * 2)(x[:0])


@program("batch-without-examples")
def as_many_as_unbacked() -> Callable[[Tensor], Any]:
    return lambda x: vmap(lambda a: a * 2)(x[x > 0])


@program("batch-without-examples")
def none_by_data() -> Callable[[Tensor], Any]:
    return lambda x: vmap(lambda a: a * 2)(x[x > 99])


@program("operation-failed")
def wrong_shapes() -> Callable[[Tensor], Any]:
    return lambda x: vmap(lambda a, b: a @ b)(x, x[:, :2])


@program("body-raises")
def raised_and_caught() -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        try:
            return vmap(raises)(x)
        except ValueError as error:
            return x * 2, str(error)

    return f


def argument() -> Tensor:
    return torch.arange(-5.0, 7.0).reshape(4, 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_eagerly(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    kind, make = PROGRAMS[name]
    results, printed = [], []
    for compile in (lambda target: target, framesmith.compile):
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            call = compile(make())
            results.append([outcome(call, argument()) for _ in range(3)])
        printed.append(capfd.readouterr().out)
        assert not [one for one in reported if "failed to compile" in str(one.message)]
    assert results[0] == results[1]
    assert printed[0] == printed[1]
    framesmith.reset()
    with pytest.raises(Exception, match=rf"\[{kind}\]"):
        framesmith.compile(make(), fullgraph=True)(argument())
    assert torch._C._functorch.peek_interpreter_stack() is None


REFUSED: dict[str, Callable[[], Any]] = {
    "sizes": lambda: vmap(lambda a, b: a + b)(torch.ones(3, 4), torch.ones(2, 4)),
    "structure": lambda: vmap(lambda a: a, in_dims=(0, 0))(torch.ones(3)),
    "no tensors": lambda: vmap(lambda a: a)(3),
    "no arguments": lambda: vmap(lambda: torch.ones(3))(),
    "a dimension": lambda: vmap(lambda a: a, in_dims=2)(torch.ones(3)),
    "kinds of dimensions": lambda: vmap(lambda a: a, in_dims=[0])(torch.ones(3)),
    "dimensions of results": lambda: vmap(lambda a: a, out_dims="x")(torch.ones(3)),
    "an object's name": lambda: vmap(nn.Linear(3, 3), in_dims=(0, 0))(torch.ones(3)),
    "randomness": lambda: vmap(lambda a: a, randomness="what")(torch.ones(3)),
    "chunks": lambda: vmap(lambda a: a, chunk_size=0)(torch.ones(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    call = REFUSED[name]
    with pytest.raises(Exception) as wanted:
        call()
    for _ in range(2):
        with pytest.raises(wanted.type) as found:
            framesmith.compile(call)()
        assert str(found.value) == str(wanted.value)
        assert torch._C._functorch.peek_interpreter_stack() is None

    kind = wanted.type

    def catches(x: Tensor) -> tuple[Tensor, str]:
        try:
            call()
        except kind as error:
            return x + 1, str(error)
        return x, ""

    assert framesmith.compile(catches)(torch.ones(2))[1] == str(wanted.value)


def test_within_an_eager_transform() -> None:
    mapped = framesmith.compile(vmap(lambda a: a.sin() * 2))
    x = argument().reshape(2, 2, 3)
    with pytest.warns(framesmith.FramesmithWarning, match=r"torch\.func transform"):
        found = vmap(mapped)(x)
    torch.testing.assert_close(found, x.sin() * 2)
    torch.testing.assert_close(mapped(x), x.sin() * 2)
    gradient = torch.func.grad(lambda x: mapped(x).sum())(x)
    torch.testing.assert_close(gradient, x.cos() * 2)


def test_between_breaks() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin()
        print(end="")
        z = vmap(lambda a: a * 2)(y)
        print(end="")
        return z + vmap(lambda a: a.cos())(z)

    x = argument().requires_grad_()
    compiled = framesmith.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))
        [got], [want] = (torch.autograd.grad(call(x).sum(), x) for call in (compiled, f))
        torch.testing.assert_close(got, want)
    assert framesmith.stats()["graphs"] == 3


@pytest.mark.parametrize("transform", [vmap, lambda f: torch.func.grad(lambda a: f(a).sum())])
def test_as_a_backend_of_torch_compile(transform: Callable[..., Any]) -> None:
    """Its graphs enter transforms by nodes, which are not compiled: the graph runs eagerly, and no level is left."""
    x = torch.randn(2, 3)
    torch._dynamo.reset()
    with pytest.warns(framesmith.FramesmithWarning):
        found = torch.compile(transform(lambda a: a.sin()), backend=framesmith_backend)(x)
    torch.testing.assert_close(found, transform(lambda a: a.sin())(x))
    assert torch._C._functorch.peek_interpreter_stack() is None
