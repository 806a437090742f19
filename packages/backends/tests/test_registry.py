"""Backends are found by name."""

from __future__ import annotations

import pytest
import torch
from graphs.tracing import trace

from framesmith_aten.contract import Backend
from framesmith_backends import EagerBackend, find_backend, list_backends


def test_own_backends_are_listed() -> None:
    assert {"eager", "cpu"} <= set(list_backends())


@pytest.mark.parametrize("name", ["eager", "cpu"])
def test_found_backends_keep_the_protocol(name: str) -> None:
    backend = find_backend(name)
    assert isinstance(backend, Backend)
    assert backend.name == name


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'eager'"):
        find_backend("eagre")


def test_eager_runs_the_graph() -> None:
    x = torch.randn(4)
    gm = trace(lambda a: (a + 1, a * 2), [x])
    args = [x]
    out = EagerBackend().compile(gm, [x])(args)
    assert args == []
    assert torch.equal(out[0], x + 1)
    assert EagerBackend().why_not(gm) is None
