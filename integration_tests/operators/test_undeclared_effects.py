"""Undeclared effects of custom operators on Python's objects: where they differ from eager, as documented.

See docs/known-limitations.md: such operators are taken at their schemas' word.
"""

import pytest
import torch

import framesmith
from integration_tests.programs.operators.library import SEEN

OPS = torch.ops.programs


@pytest.fixture(autouse=True)
def _nothing_seen():
    SEEN.clear()
    yield
    SEEN.clear()


def test_what_a_function_reads_behind_the_call_is_read_before_it() -> None:
    def f(x):
        OPS.doubled(x)
        return x + 1, len(SEEN)

    assert f(torch.ones(2))[1] == 1
    SEEN.clear()
    compiled = framesmith.compile(f)
    assert [compiled(torch.ones(2))[1] for _ in range(3)] == [0, 1, 2]
    assert SEEN == [("doubled", 2)] * 3


def test_an_operator_that_returns_nothing_and_raises_runs_once_with_others_of_its_kind() -> None:
    def f(x):
        OPS.log(x, "before")
        torch.ops.undeclared.refuse(x)
        return x * 2

    with torch.library._scoped_library("undeclared", "FRAGMENT") as made:
        made.define("refuse(Tensor x) -> ()")
        made.impl("refuse", lambda x: x.view(7), "CPU")
        made.impl("refuse", lambda x: None, "Meta")
        with pytest.raises(RuntimeError, match="shape"):
            framesmith.compile(f)(torch.ones(2))
    assert SEEN == [("before", 2.0)]


def test_an_operator_that_raises_runs_again_with_those_before_it() -> None:
    def f(x):
        OPS.scale_(x, 2.0)
        OPS.positive_only(x)
        return x * 2

    compiled, x = framesmith.compile(f), torch.tensor([5.0, 1.0])
    assert compiled(x).tolist() == [20, 4] and SEEN == ["scale_", "positive_only"]
    SEEN.clear()
    x = torch.tensor([5.0, -1.0])
    with pytest.raises(ValueError, match=r"not positive: \[10.0, -2.0\]"):
        compiled(x)
    assert x.tolist() == [10, -2]
    # In the graph; operation by operation, to find whose error it is; eagerly, where it is raised.
    assert SEEN == ["scale_", "positive_only"] * 3
