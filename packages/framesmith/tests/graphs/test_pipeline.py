"""Selection of a graph's backend by the devices, roles and refusals that backends declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import framesmith
from framesmith.backends import backend_for
from framesmith.graphs.pipeline import select
from framesmith_aten.contract import OnError
from framesmith_backends import EagerBackend

GRAPH = fx.symbolic_trace(lambda x: (x + 1,))
ON_CPU = [torch.ones(2)]


class Forward(EagerBackend):
    name = "forward only"
    roles = ("forward",)


class Refusing(EagerBackend):
    def why_not(self, gm: fx.GraphModule) -> str | None:
        return "it is Monday"


class Lacking(EagerBackend):
    """As the cuda backend is where triton is not installed."""

    name = "cuda"
    devices = ("cpu", "cuda")

    def why_not_here(self) -> str | None:
        return "triton is not installed: python -m pip install 'framesmith-backends[cuda]'"

    def why_not(self, gm: fx.GraphModule) -> str | None:
        return self.why_not_here()


def test_what_is_missing_is_said_when_the_function_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framesmith.backends.find_backend", lambda name: Lacking())
    with pytest.raises(RuntimeError, match=r"'cuda' cannot run here: triton is not installed: python -m pip install"):
        framesmith.compile(lambda x: x + 1, backend="cuda")


def test_auto_runs_what_it_lacks_kernels_for_after_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    framesmith.reset()
    monkeypatch.setattr("framesmith.backends.find_backend", lambda name: Lacking())
    with pytest.warns(framesmith.FramesmithWarning, match="triton is not installed") as warned:
        for function in (lambda x: x + 1, lambda x: x * 2):
            assert torch.equal(framesmith.compile(function)(torch.ones(3)), function(torch.ones(3)))
    assert len(warned) == 1
    assert framesmith.stats()["graphs"] == 2


def test_a_backend_gets_the_roles_that_it_declares() -> None:
    backend = Forward()
    assert select(backend, GRAPH, ON_CPU, "forward") is backend
    with pytest.raises(ValueError, match="takes no backward graphs"):
        select(backend, GRAPH, ON_CPU, "backward")
    with pytest.raises(ValueError, match="Monday"):
        select(Refusing(), GRAPH, ON_CPU, "inference")


@pytest.mark.parametrize(
    ("kinds", "name"),
    [((), "cpu"), (("cpu",), "cpu"), (("cuda",), "cuda"), (("cuda", "cpu"), "cuda"), (("meta",), "eager")]
    + [(("cpu", "meta"), "eager"), (("cuda", "xpu"), "eager")],
)
def test_auto_goes_by_the_devices(kinds: tuple[str, ...], name: str) -> None:
    with FakeTensorMode():
        inputs = [5, *(torch.empty(2, device=kind) for kind in kinds)]
    assert backend_for("auto", inputs).name == name


@pytest.mark.parametrize(
    ("given", "made", "name"),
    [("cpu", "cuda cuda", "cuda"), ("cpu", "cpu cuda cuda", "cuda"), ("", "cuda", "cuda"), ("cpu", "cpu cuda", "cpu")]
    + [("", "cpu", "cpu"), ("cuda", "cpu cpu", "cuda"), ("cpu", "meta meta", "cpu"), ("meta", "cuda", "eager")],
)
@pytest.mark.parametrize("key", ["val", "example_value"])
def test_auto_goes_by_what_a_graph_makes(given: str, made: str, name: str, key: str) -> None:
    graph = fx.Graph()
    with FakeTensorMode():
        for at, kind in enumerate(given.split()):
            graph.placeholder(f"x{at}").meta[key] = torch.empty(2, device=kind)
        for kind in made.split():
            graph.call_function(torch.zeros, (2,)).meta[key] = torch.empty(2, device=kind)
    inputs = [node.meta[key] for node in graph.find_nodes(op="placeholder")]
    assert backend_for("auto", inputs, fx.GraphModule({}, graph)).name == name


class FixedSizes(EagerBackend):
    name = "fixed sizes"
    fixed_sizes = True


@pytest.mark.parametrize(("dynamic", "compiled"), [(None, 3), (False, 3), (True, 1)])
def test_kernels_for_fixed_sizes_are_kept(dynamic: bool | None, compiled: int) -> None:
    framesmith.reset()
    double = framesmith.compile(lambda x: x * 2, backend=FixedSizes(), dynamic=dynamic)
    for rows in (4, 5, 6):
        double(torch.ones(rows))
    assert framesmith.stats()["frames_compiled"] == compiled


class Transforming(EagerBackend):
    """Transforms graphs of training by a function of the test's."""

    def __init__(self, transform_step: Callable[[fx.Graph], fx.Graph | None]) -> None:
        self.function = transform_step
        self.seen: list[tuple[fx.Graph, object]] = []

    def transform_step(
        self, graph: fx.Graph, options: Mapping[str, object] | None = None, on_error: OnError | None = None
    ) -> fx.Graph | None:
        self.seen.append((graph, options))
        return self.function(graph)


def test_a_backend_is_shown_a_training_step_as_a_whole() -> None:
    framesmith.reset()
    backend = Transforming(lambda graph: None)
    compiled = framesmith.compile(lambda x: x.sin(), backend=backend, strict=True)
    compiled(torch.ones(3))
    assert not backend.seen
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    ((graph, options),) = backend.seen
    assert torch.ops.aten.cos.default in {node.target for node in graph.nodes} and options == {}
    torch.testing.assert_close(x.grad, torch.ones(3).cos())


def test_what_fails_over_a_training_step_leaves_the_graph() -> None:
    def fails(graph: fx.Graph) -> fx.Graph | None:
        raise RuntimeError("no change")

    framesmith.reset()
    compiled = framesmith.compile(lambda x: x.sin() * 2, backend=Transforming(fails))
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(framesmith.FramesmithWarning, match=r"a training step: RuntimeError: no change") as warned:
        compiled(x).sum().backward()
    assert len(warned) == 1 and framesmith.stats()["graphs"] >= 1
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).cos())
    with pytest.raises(framesmith.FramesmithError, match="no change"):
        framesmith.compile(lambda x: x.sin() * 3, backend=Transforming(fails), strict=True)(x)
