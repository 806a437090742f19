"""Which backend gets a graph: by the devices, roles and refusals that backends declare."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith.backends import backend_for
from framesmith.pipeline import select
from framesmith_backends import EagerBackend

GRAPH = fx.symbolic_trace(lambda x: (x + 1,))
ON_CPU = [torch.ones(2)]


class Forward(EagerBackend):
    name = "forward only"
    roles = ("forward",)


class Refusing(EagerBackend):
    def why_not(self, gm: fx.GraphModule) -> str | None:
        return "it is Monday"


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
