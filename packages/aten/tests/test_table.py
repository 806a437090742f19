"""The table names operators that torch has, and says of them only what schemas do not."""

from __future__ import annotations

import pytest
import torch
from overloads import ROWS, overloads

from framesmith_aten.table import TABLE

#: Operators that some of the supported releases no longer have.
REMOVED = {"cholesky"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ROWS)
def test_torch_has_the_operator(name):
    assert overloads(name) or name in REMOVED, f"torch {torch.__version__} has no aten::{name}"


@pytest.mark.parametrize("name", [name for name in ROWS if TABLE[name].pointwise])
def test_pointwise_is_said_only_where_torch_does_not_tag_it(name):
    functional = [op for op in overloads(name) if not op._schema.is_mutable]
    assert not all(torch.Tag.pointwise in op.tags for op in functional)


@pytest.mark.parametrize("name", [name for name in ROWS if TABLE[name].costly])
def test_costly_operators_are_pointwise(name):
    assert TABLE[name].pointwise or any(torch.Tag.pointwise in op.tags for op in overloads(name))


@pytest.mark.parametrize("name", [name for name in ROWS if TABLE[name].statistics])
def test_statistics_are_arguments_that_the_schema_does_not_declare(name):
    for op in overloads(name):
        if op._overloadname == "out":
            continue
        found = {a.name: a.alias_info for a in op._schema.arguments}
        assert found["running_mean"] is None and found["running_var"] is None


@pytest.mark.parametrize("name", [name for name in ROWS if TABLE[name].undeclared_view])
def test_views_are_undeclared(name):
    assert not any(op.is_view for op in overloads(name))
