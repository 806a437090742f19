"""Generated pages say what the code says; pages name the files that there are, and links lead somewhere."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from framesmith_bytecode import ITERATOR_SLOTS
from tools.warm_process import run_program

ROOT = Path(__file__).resolve().parents[2]
#: The way through each package that has a page.
PAGES = sorted((ROOT / "docs" / "packages").glob("*.md"))
SOURCES = (".py", ".pyi", ".c", ".h")
TEXTS = sorted(
    {
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "packages").glob("*/README.md"),
    }
)


@pytest.mark.parametrize("tool", ["generate_errors.py", "generate_names.py"])
def test_a_generated_page_is_up_to_date(tool: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_has_a_user() -> None:
    """Another package, an example of the README, or a used name that hands it out."""
    command = [sys.executable, str(ROOT / "tools" / "generate_names.py"), "--unused"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def prose(text: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text.read_text(), flags=re.DOTALL | re.MULTILINE)


def named_on(page: Path) -> set[str]:
    """The files and folders that a page names: what stands between backticks and ends as one does."""
    words = re.findall(r"`([\w./-]+)`", prose(page))
    return {word for word in words if word.endswith("/") or Path(word).suffix in SOURCES}


def source_of(page: Path) -> Path:
    """The folder that the page's file names are relative to."""
    (facade,) = (ROOT / "packages" / page.stem / "src").glob("*/__init__.py")
    return facade.parent


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_packages_page_names_every_source_file(page: Path) -> None:
    """Or the folder that it lies in. The `__init__.py` of folders inside are named by their files."""
    source = source_of(page)
    files = [path.relative_to(source) for path in source.rglob("*") if path.suffix in SOURCES]
    named = named_on(page)
    own = {str(file) for file in files if file.name != "__init__.py" or file.parent == Path()}
    assert sorted(file for file in own if not {file, f"{Path(file).parent}/"} & named) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_packages_page_names_nothing_that_is_not_there(page: Path) -> None:
    folders = (source_of(page), ROOT)
    assert sorted(word for word in named_on(page) if not any((place / word).exists() for place in folders)) == []


def test_the_glossary_names_files_that_are_there() -> None:
    """Relative to the sources of packages, and one at least for each term."""
    glossary = ROOT / "docs" / "glossary.md"
    rows = re.findall(r"^\| (?!Term).*$", glossary.read_text(), re.MULTILINE)
    assert rows and [row for row in rows if not re.search(r"`\w+/[\w./]+\.(py|c)`", row)] == []
    sources = {page.stem: source_of(page) for page in PAGES}
    named = [word.partition("/") for word in named_on(glossary) if not word.startswith("packages/")]
    assert [f"{package}/{path}" for package, _, path in named if not (sources[package] / path).exists()] == []


def remarks(path: Path) -> Iterator[str]:
    """The comments of a source file, and its docstrings."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT or token.string.startswith('"""'):
                yield token.string


def is_named_in(folder: Path, name: str) -> bool:
    """Whether a dotted name leads from the folder to a module, or to a word of one."""
    place, parts = folder, name.split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    found = [place / f"{parts[0]}{kind}" for kind in (".py", ".pyi")] if parts else []
    module = next(filter(Path.exists, found), None)
    if module is not None:
        parts.pop(0)
    elif place != folder:
        module = place / "__init__.py"
    return module is not None and (not parts or re.search(rf"\b{parts[0]}\b", module.read_text()) is not None)


@pytest.mark.parametrize("package", PAGES, ids=lambda page: page.stem)
def test_docstrings_and_comments_name_what_is_there(package: Path) -> None:
    """Modules and what is in them, by the end of their path, and files."""
    source = source_of(package)
    folders = [source, *(path for path in source.rglob("*") if path.is_dir())]
    elsewhere = {*dir(builtins), *sys.stdlib_module_names, "deque", "module"}
    known = {path.stem for path in source.rglob("*") if path.is_dir() or path.suffix in SOURCES} - elsewhere
    roots = (ROOT, *(source_of(page).parents[0] for page in PAGES))
    missing = []
    for path in sorted(source.rglob("*.py")):
        for text in remarks(path):
            names = re.findall(r"`((?:[a-z_]\w*\.)+\w+)(?:\(\))?`", text)
            names = [name for name in names if name.split(".")[0] in known and Path(name).suffix not in SOURCES]
            missing += [name for name in names if not any(is_named_in(folder, name) for folder in folders)]
            files = re.findall(r"`([\w/.-]+\.(?:py|c|h|md))`", text)
            missing += [name for name in files if not any((root / name).exists() for root in (*folders, *roots))]
    assert missing == []


#: The heading of an output as it is on CPython 3.15.
TWO_SLOTS = "Where an iterator in a loop takes two slots (3.15):"


def listings(page: Path) -> list[tuple[str, str]]:
    """The blocks of Python on a page, each with the block of text that shows its output on the running Python.

    A second block, headed by TWO_SLOTS, shows an output that differs where an iterator in a loop takes two slots.
    """
    block = r"```text\n(.*?)^```"
    pattern = rf"^```python\n(.*?)^```\n+{block}(?:\n+{re.escape(TWO_SLOTS)}\n+{block})?"
    found = re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE)
    return [(source, with_two if ITERATOR_SLOTS == 2 and with_two else output) for source, output, with_two in found]


SHOWN = [page for page in (*PAGES, *sorted((ROOT / "docs" / "howto").glob("*.md"))) if listings(page)]


#: The line between the outputs of a page's blocks.
SEPARATOR = "-- end of a listing --\n"


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_a_page_shows_what_its_code_prints(page: Path) -> None:
    """All blocks of a page are one program."""
    found = listings(page)
    done = run_program(f"print({SEPARATOR!r}, end='')\n".join(source for source, _ in found))
    assert done.stdout.split(SEPARATOR) == [output for _, output in found], done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_packages_page_is_linked(page: Path) -> None:
    linked = {
        ROOT / "README.md": f"docs/packages/{page.name}",
        ROOT / "docs" / "architecture.md": f"packages/{page.name}",
        ROOT / "packages" / page.stem / "README.md": f"../../docs/packages/{page.name}",
    }
    assert [str(text) for text, target in linked.items() if f"]({target})" not in text.read_text()] == []


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text.relative_to(ROOT)))
def test_relative_links_lead_somewhere(text: Path) -> None:
    plain = re.sub(r"`[^`]*`", "", prose(text))
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", plain) if "://" not in link]
    assert [target for target in targets if target and not (text.parent / target).exists()] == []
