"""`fullgraph=True` where calls run eagerly: each raises, with the reason. Without it none is silent."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch

import framesmith
from framesmith_dynamo import BreakNotAllowed, EagerNotAllowed, RecompileLimit
from integration_tests.errors.eager_calls import PROGRAMS

#: Errors that say that a call runs eagerly; others are the program's, or of a graph.
REFUSALS = (BreakNotAllowed, EagerNotAllowed, RecompileLimit, framesmith.FramesmithError)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    framesmith.reset()
    yield
    framesmith.reset()


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return torch.allclose(found, wanted, atol=1e-6)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_raises_with_its_reason(name: str) -> None:
    program, reason = PROGRAMS[name]
    errors = torch.OutOfMemoryError if name == "graph_without_memory" else REFUSALS
    with pytest.raises(errors, match=reason):
        program(partial(framesmith.compile, fullgraph=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_it_each_is_right(name: str) -> None:
    program, _ = PROGRAMS[name]
    wanted = program(lambda target, **settings: target)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert same(program(framesmith.compile), wanted)
    ours = [str(w.message) for w in reported if issubclass(w.category, framesmith.FramesmithWarning)]
    if name != "without_tensors_again_and_again":  # there is nothing to compile
        assert ours or framesmith.stats()["graphs"], "nothing was compiled, and nothing is reported"
