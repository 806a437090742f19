"""A failure planted inside each layer of the compiler: the eager result and one warning; an error under `strict`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import framesmith

#: layer -> dotted name of a function that every compile of the program below runs
PLANTS = {
    "bytecode.decode": "framesmith_bytecode.decode",
    "bytecode.encode": "framesmith_bytecode.encode",
    "guards.compile": "framesmith_guards.compile_guards",
    "aten.fake mode": "framesmith_aten.fakes.new_fake_mode",
    "sideeffects.replay": "framesmith_sideeffects.Replay.make",
    "aot": "framesmith_aot.compile_graph",
}


class Planted(Exception):
    """The failure."""


def fail(*args: Any, **kwargs: Any) -> Any:
    raise Planted("planted")


def plant(monkeypatch: pytest.MonkeyPatch, dotted: str) -> None:
    """Replace a function wherever framesmith's modules have imported it."""
    import importlib
    import sys

    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
            break
        except ModuleNotFoundError:
            continue
    for name in parts[cut:-1]:
        owner = getattr(owner, name)
    original = getattr(owner, parts[-1])
    monkeypatch.setattr(owner, parts[-1], fail)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("framesmith") and getattr(module, parts[-1], None) is original:
            monkeypatch.setattr(module, parts[-1], fail)


SOURCE = """
def f(x):
    log.append(x.shape[0])
    return (x.sin() + 1).sum(-1)
"""


def program() -> tuple[Callable[..., Any], list]:
    """A function with a code object of its own, so that nothing about it is cached, and the list it appends to."""
    log: list = []
    namespace: dict[str, Any] = {"log": log}
    exec(compile(SOURCE, __file__, "exec"), namespace)
    return namespace["f"], log


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    framesmith.reset()
    yield
    framesmith.reset()


def check_fallback(backend: Any = "auto") -> None:
    f, log = program()
    x = torch.randn(3, 4)
    expected = f(x)
    log.clear()
    compiled = framesmith.compile(f, backend=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(compiled(x), expected)
    assert log == [3, 3, 3]
    ours = [w for w in caught if issubclass(w.category, framesmith.FramesmithWarning)]
    assert len(ours) == 1, [str(w.message) for w in caught]
    assert "planted" in str(ours[0].message)
    assert framesmith.stats()["frames_failed"] >= 1


def check_strict(backend: Any = "auto", **settings: Any) -> None:
    f, log = program()
    compiled = framesmith.compile(f, backend=backend, **(settings or {"strict": True}))
    with pytest.raises(framesmith.FramesmithError, match="planted") as caught:
        compiled(torch.randn(3, 4))
    assert isinstance(caught.value.__cause__, Planted)
    assert log == []


@pytest.mark.parametrize("layer", PLANTS)
def test_a_failure_in_a_layer_runs_eagerly(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, PLANTS[layer])
    check_fallback()


@pytest.mark.parametrize("setting", ["strict", "fullgraph"])
@pytest.mark.parametrize("layer", PLANTS)
def test_a_failure_in_a_layer_is_an_error(layer: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, PLANTS[layer])
    check_strict(**{setting: True})


def test_a_failure_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_dynamo.values.tensors.tensor import TensorValue

    monkeypatch.setattr(TensorValue, "call_method_first", fail)
    check_fallback()
    check_strict()


def test_a_failure_in_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends import find_backend

    monkeypatch.setattr(type(find_backend("cpu")), "compile", fail)
    check_fallback("cpu")
    check_strict("cpu")


def test_a_failure_in_a_custom_backend() -> None:
    check_fallback(fail)
    check_strict(fail)


def test_a_failure_in_the_backward_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends import find_backend

    cls = type(find_backend("cpu"))
    compile_graph = cls.compile

    def fail_backward(self: Any, gm: Any, inputs: Any, role: str, options: Any, on_error: Any) -> Any:
        if role == "backward":
            raise Planted("planted")
        return compile_graph(self, gm, inputs, role, options, on_error)

    monkeypatch.setattr(cls, "compile", fail_backward)
    x = torch.randn(3, requires_grad=True)
    compiled = framesmith.compile(lambda t: t.sin().sum(), backend="cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            x.grad = None
            compiled(x).backward()
            assert torch.allclose(x.grad, x.detach().cos())
    ours = [w for w in caught if issubclass(w.category, framesmith.FramesmithWarning)]
    assert len(ours) == 1 and "planted" in str(ours[0].message)


def test_a_failing_rule_costs_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.lower.registry import RULES

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise Planted("planted")

    monkeypatch.setitem(RULES, "aten.sin.default", fail)
    x = torch.randn(3)
    compiled = framesmith.compile(lambda t: t.sin() * 2 + t.exp())
    with pytest.warns(framesmith.FramesmithWarning, match=r"aten\.sin\.default\): Planted: planted"):
        assert torch.allclose(compiled(x), x.sin() * 2 + x.exp())
    with pytest.raises(framesmith.FramesmithError, match="planted"):
        framesmith.compile(lambda t: t.sin() * 2, strict=True)(x)


def test_a_failing_check_is_reported_and_the_call_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    import framesmith_guards

    original = framesmith_guards.compile_guards

    class Broken:
        text = "broken"

        def __call__(self, *args: Any) -> bool:
            raise Planted("planted")

    def broken(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        return Broken()

    for module in list(__import__("sys").modules.values()):
        if getattr(module, "compile_guards", None) is original:
            monkeypatch.setattr(module, "compile_guards", broken)
    check_fallback()
