"""Functions that are marked for the compiler, and what compiled functions may call."""

from __future__ import annotations

import sys
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo import config, decorators
from torch._dynamo.comptime import comptime

import framesmith
from framesmith_dynamo import BreakNotAllowed
from integration_tests.api.switches import (
    X,
    asks,
    breaks,
    broken,
    check_reported,
    compiled,
    graphs,
    row,
)


@row("torch.compiler.disable")
def _() -> None:
    h = torch.compiler.disable(asks)
    call = compiled(lambda x: h(x.sin()) + 1)
    for _ in range(2):
        torch.testing.assert_close(call(X), X.sin().cos() * 100 + 1)
    assert graphs() == 2 and breaks() == 1
    torch.testing.assert_close(compiled(h)(X), X.cos())  # as torch.compile does
    torch.testing.assert_close(h(X), X.cos() * 100)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return asks(x)

    module = torch.compiler.disable(Model())
    torch.testing.assert_close(compiled(lambda x: module(x.sin()) + 1)(X), X.sin().cos() * 100 + 1)
    cls = torch.compiler.disable(type("Disabled", (Model,), {}))
    one = cls()
    torch.testing.assert_close(compiled(lambda x: one(x.sin()) + 1)(X), X.sin().cos() * 100 + 1)
    torch.testing.assert_close(compiled(one)(X), X.cos() * 100)
    by_method = Model()
    by_method.forward = torch.compiler.disable(by_method.forward)  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(by_method)(X), X.cos() * 100)


@row("torch.compiler.disable(recursive=False)")
def _() -> None:
    @torch.compiler.disable(recursive=False)
    def h(x: torch.Tensor) -> torch.Tensor:
        return asks(asks(x) if torch.compiler.is_compiling() else x)

    call = compiled(lambda x: h(x.sin()) + 1)
    for _ in range(2):
        torch.testing.assert_close(call(X), X.sin().cos() + 1)


@row("torch.compiler.disable(reason=...)")
def _() -> None:
    h = torch.compiler.disable(asks, reason="it draws on the screen")
    with pytest.raises(BreakNotAllowed, match=r"disabled-by-torch.*it draws on the screen"):
        compiled(lambda x: h(x) + 1, fullgraph=True)(X)


@row("torch._dynamo.disable")
def _() -> None:
    @torch._dynamo.disable()
    def h(x: torch.Tensor) -> torch.Tensor:
        return asks(x)

    torch.testing.assert_close(compiled(lambda x: h(x) + 1)(X), X.cos() * 100 + 1)


@row("torch._dynamo.decorators.skip")
def _() -> None:
    @decorators.skip
    def h(x: torch.Tensor) -> torch.Tensor:
        return asks(x) if torch.compiler.is_compiling() else asks(x) + 5

    torch.testing.assert_close(compiled(lambda x: h(x) + 1)(X), X.cos() + 6)


@row("torch._dynamo.run")
def _() -> None:
    call = compiled(lambda x: asks(x.sin()))
    call(X)
    only = torch._dynamo.run(call)
    torch.testing.assert_close(only(X), X.sin().cos())
    torch.testing.assert_close(only(X.double()), X.double().sin().cos() * 100)
    assert graphs() == 1
    torch.testing.assert_close(call(X.double()), X.double().sin().cos())


@row("torch._dynamo.graph_break")
def _() -> None:
    call = compiled(broken)
    assert torch.equal(call(X), broken(X)) and torch.equal(call(X), broken(X))
    assert graphs() == 2 and breaks() == 1
    with pytest.raises(BreakNotAllowed, match="requested-break"):
        compiled(broken, fullgraph=True)(X)
    for ask in (decorators.skip_frame, decorators.step_unsupported):
        framesmith.reset()
        assert torch.equal(compiled(lambda x, ask=ask: (x.sin(), ask())[0])(X), X.sin()) and breaks() == 1


@row("torch._dynamo.error_on_graph_break")
def _() -> None:
    def inside(x: torch.Tensor, raises: bool) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(raises):
            return broken(x)

    def allowed_inside(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(True):
            y = x.sin()
            with torch._dynamo.error_on_graph_break(False):
                torch._dynamo.graph_break()
            return y.cos()

    decorated = torch._dynamo.error_on_graph_break(True)(broken)
    for call in (compiled(lambda x: inside(x, True)), compiled(lambda x: decorated(x * 2)), compiled(decorated)):
        with pytest.raises(BreakNotAllowed, match="error_on_graph_break"):
            call(X)
    with torch._dynamo.error_on_graph_break(True), pytest.raises(BreakNotAllowed):
        compiled(lambda x: broken(x))(X)
    assert torch.equal(compiled(lambda x: inside(x, False))(X), broken(X))
    assert torch.equal(compiled(allowed_inside)(X), X.sin().cos())
    assert torch._dynamo.utils._error_on_graph_break is False


@row("torch._dynamo.disallow_in_graph")
def _() -> None:
    torch._dynamo.disallow_in_graph(torch.sub)
    try:
        assert torch.equal(compiled(lambda x: torch.sub(x * 2, 1) + 1)(X), X * 2) and breaks() == 1
    finally:
        torch._dynamo.allow_in_graph(torch.sub)


@row("torch._dynamo.forbid_in_graph")
def _() -> None:
    @torch._dynamo.forbid_in_graph
    def h(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(BreakNotAllowed, match="compiler-call"):
        compiled(lambda x: h(x) * 2, fullgraph=True)(X)
    assert torch.equal(compiled(lambda x: h(x) * 2)(X), (X + 1) * 2)

    def marks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.mark_dynamic(x, 0)
        return x * 2

    assert torch.equal(compiled(marks)(X.clone()), X * 2)


@row("torch.compiler.allow_in_graph")
def _() -> None:
    def own(x: torch.Tensor, *, more: int = 1) -> tuple[torch.Tensor, list[torch.Tensor]]:
        sys.getrecursionlimit()  # which nobody traces
        return x.cos() + more, [x * more]

    torch.compiler.allow_in_graph(own)
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    for options in ({}, {"backend": backend}, {"backend": "auto"}):
        call = compiled(lambda x: own(x.sin(), more=2), fullgraph=True, **options)
        for _ in range(2):
            torch.testing.assert_close(call(X), own(X.sin(), more=2))
        x = X.clone().requires_grad_()
        call(x)[0].sum().backward()
        torch.testing.assert_close(x.grad, -X.sin().sin() * X.cos())
    assert seen


@row("torch._dynamo.nonstrict_trace", needs="nonstrict_trace")
def _() -> None:
    linear = torch.nn.Linear(3, 3)

    @torch._dynamo.nonstrict_trace
    def own(x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + others["a"]

    @torch._dynamo.nonstrict_trace
    def with_module(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x)

    torch.testing.assert_close(compiled(lambda x: own(x.sin(), {"a": x}), fullgraph=True)(X), X.sin() + X)
    torch.testing.assert_close(compiled(lambda x: with_module(linear, x.sin()))(X), linear(X.sin()))


@row("torch.compiler.assume_constant_result")
def _() -> None:
    calls: list[int] = []

    @torch.compiler.assume_constant_result
    def size(n: int) -> int:
        calls.append(n)
        return n + 1

    @torch.compiler.assume_constant_result
    def table() -> torch.Tensor:
        return torch.full((3,), 7.0)

    class Owner:
        k = 5

        @torch.compiler.assume_constant_result
        def size(self, n: int) -> int:
            calls.append(n)
            return self.k * n

    owner = Owner()
    call = compiled(lambda x: x * size(2) * table() * owner.size(3), fullgraph=True)
    for _ in range(3):
        assert torch.equal(call(X), X * 3 * 7 * 15)
    assert calls == [2, 3]
    assert torch.equal(compiled(lambda x: x * owner.size(x.sum()))(X), X * 30)  # not known while tracing: it runs


@row("torch.compiler.substitute_in_graph")
def _() -> None:
    if getattr(zlib, "substituted", None) is None:

        @torch.compiler.substitute_in_graph(zlib.adler32, skip_signature_check=True)
        def adler32(data: Any, value: int = 1, /) -> Any:
            return data * 3 + value

        zlib.substituted = adler32  # type: ignore[attr-defined]
    call = compiled(lambda x, n: x * zlib.adler32(n), fullgraph=True)
    assert torch.equal(call(X, 4), X * 13) and torch.equal(call(X, 5), X * 16)


@row("torch.compiler.nested_compile_region", needs="nested_compile_region")
def _() -> None:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor) -> torch.Tensor:
        return asks(x.sin())

    torch.testing.assert_close(
        compiled(lambda x: block(x) + block(x * 2), fullgraph=True)(X).cos(),
        (X.sin().cos() + (X * 2).sin().cos()).cos(),
    )
    assert graphs() == 1


@row("torch._dynamo.decorators.leaf_function", needs="leaf_function")
def _() -> None:
    calls: list[bool] = []

    @decorators.leaf_function
    def leaf(x: torch.Tensor) -> tuple[torch.Tensor]:
        calls.append(torch.compiler.is_compiling())
        return (x + 1,)

    @leaf.register_fake
    def _(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.new_empty(x.shape),)

    call = compiled(lambda x: leaf(x * 2)[0] * 3)
    for _ in range(2):
        assert torch.equal(call(X), (X * 2 + 1) * 3)
    assert calls.count(False) >= 2 and True not in calls and breaks() == 1


@row("torch.compiler.wrap_numpy")
def _() -> None:
    @torch.compiler.wrap_numpy
    def sums(a: Any) -> Any:
        return np.square(a)

    assert torch.equal(compiled(lambda x: sums(x * 2) + 1)(X), (X * 2).square() + 1)


@row("torch._dynamo.comptime")
def _() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        comptime.graph_break()
        return y * 2

    assert torch.equal(compiled(f)(X), (X + 1) * 2)


@row("torch._dynamo.patch_dynamo_config")
def _() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.patch_dynamo_config(verbose=not config.verbose):
            y = x + 1
        return y * 2

    before = config.verbose
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(f)(X), (X + 1) * 2) and config.verbose is before


@row("torch._dynamo.override_cudagraphs", needs="override_cudagraphs")
def _() -> None:
    decorated = torch._dynamo.override_cudagraphs(fwd=False)(lambda x: x + 1)
    check_reported(lambda: compiled(lambda x: decorated(x) * 2)(X), "override_cudagraphs")
