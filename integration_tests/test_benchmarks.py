"""The benchmarks themselves: every suite imports, and every registered model takes an eager step."""

from __future__ import annotations

import importlib
import warnings

import pytest

from benchmarks.__main__ import SUITES
from benchmarks.zoo import MODELS, Model, make_step, select

pytest.importorskip("transformers")

CASES = [(row, mode, dtype) for row in MODELS for dtype in row.dtypes for mode in row.modes]


@pytest.mark.parametrize("suite", SUITES)
def test_suite_imports(suite: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{suite}").run)


@pytest.mark.parametrize(("row", "mode", "dtype"), CASES, ids=[f"{r.name}-{m}-{d}" for r, m, d in CASES])
def test_model_takes_an_eager_step(row: Model, mode: str, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert make_step(row, mode, dtype, lambda module: module)().isfinite().all()


def test_table_holds_what_is_promised() -> None:
    assert len({row.name for row in MODELS}) == len(MODELS)
    assert sum("float32" in row.dtypes and "inference" in row.modes for row in MODELS) >= 25
    assert sum("training" in row.modes for row in MODELS) >= 25
    assert sum("bfloat16" in row.dtypes for row in MODELS) >= 8


def test_pattern_without_match_lists_models() -> None:
    with pytest.raises(ValueError, match="there are: bert"):
        select("brt")
