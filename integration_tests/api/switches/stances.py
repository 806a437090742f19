"""The stance; questions of traced code; resets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config

import framesmith
from framesmith_dynamo import StanceForbids
from integration_tests.api.switches import (
    X,
    asks,
    check_reported,
    compiled,
    graphs,
    row,
    run_python,
    sized,
)


@row('set_stance("default")')
def _() -> None:
    call = compiled(asks)
    with torch.compiler.set_stance("force_eager"), torch.compiler.set_stance("default"):
        assert torch.equal(call(X), X.cos())


@row('set_stance("force_eager")')
def _() -> None:
    call = compiled(asks)
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(call(X), X.cos() * 100)
    assert graphs() == 0
    torch.testing.assert_close(call(X), X.cos())

    @torch.compiler.set_stance("force_eager")
    def around(x: torch.Tensor) -> torch.Tensor:
        return call(x)

    torch.testing.assert_close(around(X), X.cos() * 100)
    torch.compiler.set_stance("force_eager")
    torch.testing.assert_close(call(X), X.cos() * 100)
    torch.compiler.set_stance("default")
    torch.testing.assert_close(call(X), X.cos())
    assert graphs() == 1 and framesmith.stats()["frames_compiled"] == 1


@row('set_stance("eager_on_recompile")')
def _() -> None:
    call = compiled(asks)
    call(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(call(X), X.cos())
        torch.testing.assert_close(call(X.double()), X.double().cos() * 100)
    torch.testing.assert_close(call(X.double()), X.double().cos())


@row('set_stance("fail_on_recompile")')
def _() -> None:
    call = compiled(asks)
    call(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(call(X), X.cos())
        with pytest.raises(StanceForbids, match=r"fail_on_recompile.*float64"):
            call(X.double())
        with pytest.raises(RuntimeError, match="not been compiled yet"):
            compiled(lambda x: x + 1)(X)


@row('set_stance("eager_then_compile")')
def _() -> None:
    call = compiled(asks)
    with torch.compiler.set_stance("eager_then_compile"):
        torch.testing.assert_close(call(sized(3)[0]), torch.ones(3).cos() * 100)
        for x in sized(4, 5, 6):
            torch.testing.assert_close(call(x), x.cos())
    assert graphs() == 1


@row('set_stance("aot_eager_then_compile")')
def _() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    call = compiled(asks, backend=backend)
    with torch.compiler.set_stance("aot_eager_then_compile"):
        torch.testing.assert_close(call(sized(3)[0]), torch.ones(3).cos())
        assert not seen
        for x in sized(4, 5, 6):
            torch.testing.assert_close(call(x), x.cos())
    assert len(seen) == 1 and graphs() == 2


@row("set_stance(force_backend=...)")
def _() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    call = compiled(asks)
    call(X)
    for forced in (backend, "aot_eager"):
        with torch.compiler.set_stance("default", force_backend=forced):
            for _ in range(2):
                torch.testing.assert_close(call(X), X.cos())
    assert len(seen) == 1 and graphs() == 3
    with torch.compiler.set_stance("default", force_backend="inductor"), pytest.raises(ValueError, match="inductor"):
        call(X)
    torch.testing.assert_close(call(X), X.cos())
    assert graphs() == 3


@row("set_stance(skip_guard_eval_unsafe=True)")
def _() -> None:
    call = compiled(asks)
    call(X)

    def run() -> None:
        with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
            torch.testing.assert_close(call(X.double()), X.double().cos())

    check_reported(run, "skip_guard_eval_unsafe")


# Questions and resets


@row("torch.compiler.is_compiling")
def _() -> None:
    inner = torch.compiler.disable(lambda: torch.compiler.is_compiling())

    def f(x: torch.Tensor) -> Any:
        first = torch.compiler.is_compiling()
        second = inner()
        return x + 1, first, second, torch.compiler.is_compiling(), torch._dynamo.external_utils.is_compiling()

    assert compiled(f)(X)[1:] == (True, False, True, True) and not torch.compiler.is_compiling()


@row("torch.compiler.is_dynamo_compiling")
def _() -> None:
    assert compiled(lambda x: (x + 1, torch.compiler.is_dynamo_compiling()))(X)[1] is True


@row("torch.compiler.is_exporting")
def _() -> None:
    assert compiled(lambda x: (x + 1, torch.compiler.is_exporting()))(X)[1] is False


@row("torch.compiler.reset")
def _() -> None:
    call = compiled(asks)
    for times, reset in enumerate((torch.compiler.reset, torch._dynamo.reset, torch.compiler.reset)):
        call(X)
        call(X)
        assert graphs() == times + 1
        reset()
    command = (
        "import sys, torch, framesmith\n"
        "f = framesmith.compile(lambda x: x + 1, backend='eager'); f(torch.ones(2))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "torch.compiler.reset(); f(torch.ones(2)); print(framesmith.stats()['graphs'])"
    )
    assert run_python(command) == "2"


@row("torch.compiler.cudagraph_mark_step_begin")
def _() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return x * 2

    assert torch.equal(compiled(f, fullgraph=True)(X), X * 2)


@row("torch.compiler.save_cache_artifacts")
def _() -> None:
    call = compiled(asks)
    call(X)
    torch.compiler.save_cache_artifacts()
    call(X)
    assert graphs() == 1


@row("torch.compiler.set_enable_guard_collectives", needs="set_enable_guard_collectives")
def _() -> None:
    call = compiled(asks)
    torch.compiler.set_enable_guard_collectives(True)
    try:
        torch.testing.assert_close(call(X), X.cos())
        torch.testing.assert_close(call(X), X.cos())
    finally:
        torch.compiler.set_enable_guard_collectives(False)


@row("torch.compiler.skip_guard_on_globals_unsafe", needs="skip_guard_on_globals_unsafe")
def _() -> None:
    with pytest.raises(ValueError, match="guard_filter_fn"):
        compiled(asks, options={"guard_filter_fn": torch.compiler.skip_guard_on_globals_unsafe})


@row("torch.compiler.list_backends")
def _() -> None:
    with pytest.raises(ValueError, match="unknown backend 'inductor'"):
        compiled(asks, backend="inductor")
