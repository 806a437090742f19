"""The reference page is complete and, in the repository, up to date."""

import sys
import warnings
from pathlib import Path
from types import CodeType

import pytest

from framesmith_bytecode import OPS, Instr, decode
from framesmith_bytecode.reference.examples import EXAMPLES, WRITTEN_SINCE, WRITTEN_UNTIL
from framesmith_bytecode.reference.page import SECTIONS, instructions_page


def test_every_operation_has_a_line():
    page = instructions_page()
    for name in OPS:
        assert f"| `{name}` |" in page
    assert page.count("\n## ") == len(SECTIONS)
    cells = {line.split(" | ")[0].strip("| `"): line.split(" | ")[1:] for line in page.splitlines() if "| `" in line}
    assert cells["CALL"][1:3] == ["argc + 2", "1"]
    assert cells["BUILD_MAP"][1:3] == ["2 n", "1"]
    assert "before + after + 1" in page
    assert "| `COPY` | an int, at least 1 | 0 | 1 | n |" in page
    assert "| `WITH_EXCEPT_START` | - | 0 | 1 | 4 (5 since 3.14) |" in page
    assert cells["BEFORE_WITH"][1:3] == ["1", "2 (3 since 3.14)"]


def operations(code):
    """The operations in a code object and in those nested in it."""
    found = {item.op for item in decode(code).instructions if isinstance(item, Instr)}
    return found.union(*[operations(const) for const in code.co_consts if isinstance(const, CodeType)])


def test_examples_are_for_all_operations():
    assert list(EXAMPLES) == list(OPS)
    assert [name for name, source in EXAMPLES.items() if not source] == ["SET_FUNCTION_ATTRIBUTE", "PRINT_EXPR"]


@pytest.mark.parametrize("name", [name for name, source in EXAMPLES.items() if source])
def test_examples_compile_to_their_operations(name):
    since = WRITTEN_SINCE.get(name) or OPS[name].since or "3.11"
    if tuple(map(int, since.split("."))) > sys.version_info[:2]:
        pytest.skip(f"written since {since}")
    until = WRITTEN_UNTIL.get(name)
    if until is not None and tuple(map(int, until.split("."))) < sys.version_info[:2]:
        pytest.skip(f"written until {until}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert name in operations(compile(EXAMPLES[name], "example.py", "exec"))


def test_the_prompt_prints():
    assert "PRINT_EXPR" in operations(compile("x", "<stdin>", "single"))


def test_page_in_the_repository_is_current():
    path = Path(__file__).parents[4] / "docs" / "bytecode" / "instructions.md"
    if not path.exists():
        pytest.skip("not in the repository")
    assert path.read_text(encoding="utf-8") == instructions_page()
