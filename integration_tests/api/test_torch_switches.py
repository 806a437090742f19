"""Each row of docs/torch-switches.md, by its name: a switch has its effect, warns, is refused, or is not needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo import decorators

import framesmith
from framesmith_dynamo.torch_switches import settings
from integration_tests.api.switches import NEEDS, ROWS, configuration, marks, stances

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch-switches.md"
MODULES = (marks, stances, configuration)


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled, no warning was given; the stance is the default one, and is so afterwards."""
    monkeypatch.setattr(settings, "_warned", set())
    framesmith.reset()
    yield
    torch.compiler.set_stance("default")
    framesmith.reset()


def rows_of_the_page() -> list[str]:
    """The first cells of its tables."""
    cells = re.findall(r"^\| (?!switch|---)([^|]+?) +\|", PAGE.read_text(), flags=re.MULTILINE)
    return [cell.strip("`") for cell in cells]


def test_the_page_and_the_tests_have_the_same_rows() -> None:
    found = rows_of_the_page()
    assert len(found) == len(set(found)) and sorted(found) == sorted(ROWS)


def test_every_setting_that_counts_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert [name for name in settings.HONOURED if f"`{name}`" not in text] == []


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", ROWS)
def test_a_row(name: str) -> None:
    needs = NEEDS.get(name)
    if needs is not None and not any(hasattr(owner, needs) for owner in (torch.compiler, torch._dynamo, decorators)):
        pytest.skip(f"this torch has no {needs}")
    ROWS[name]()
