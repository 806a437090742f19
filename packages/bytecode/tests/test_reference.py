"""The reference page is complete and, in the repository, up to date."""

from pathlib import Path

import pytest

from framesmith_bytecode import OPS
from framesmith_bytecode.reference import SECTIONS, instructions_page


def test_every_operation_has_a_line():
    page = instructions_page()
    for name in OPS:
        assert f"| `{name}` |" in page
    assert page.count("\n## ") == len(SECTIONS)
    assert "| `CALL` | a CallShape(argc, kwnames) with no more names than arguments | argc + 2 | 1 |" in page
    assert "| `BUILD_MAP` | a non-negative int | 2 n | 1 |" in page
    assert "before + after + 1" in page


def test_page_in_the_repository_is_current():
    path = Path(__file__).parents[3] / "docs" / "bytecode" / "instructions.md"
    if not path.exists():
        pytest.skip("not in the repository")
    assert path.read_text(encoding="utf-8") == instructions_page()
