"""`tools/check_words.py` finds the words of its table, in names and texts, and passes what is right in its context."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_words.py"

#: A file, a line in it, and the words found there.
PLANTED = [
    ("docs/page.md", "One kernel for the product.", ["product"]),
    ("packages/aten/src/a.py", "class FusedProduct:", ["Product"]),
    ("packages/aten/src/a.py", "own_products = OWN_PRODUCTS", ["PRODUCTS", "products"]),
    ("packages/backends/src/b.py", "Picked, from images", ["Picked", "images"]),
    ("packages/dynamo/src/d.py", "def is_told_by_data(): return both_ways", ["both_ways", "told", "told_by_data"]),
    ("packages/dynamo/src/d.py", "# it is left\n    # alone", ["left # alone"]),
    ("docs/page.md", "Half\ntypes, and the frame runs as plain Python.", ["Half types", "plain Python"]),
    ("packages/aot/src/a.py", "regions are kept", ["kept", "regions"]),
    ("packages/frames/src/_native/concern.c", "", ["concern"]),
    ("packages/backends/src/launch/trials.py", "", ["launch/trials"]),
    ("packages/backends/src/rewrite/attention.py", "weights", ["weights"]),
    ("packages/guards/src/g.py", '"""What a guard reads."""', ['"""What']),
    ("packages/backends/tests/test_pieces.py", "", ["pieces"]),
]

#: A file, and a line that is right there.
ALLOWED = [
    ("packages/dynamo/src/d.py", "from itertools import chain, product"),
    ("packages/dynamo/src/d.py", "for x in itertools.product(a, b):"),
    ("packages/backends/src/b.py", "F.scaled_dot_product_attention(q, k, v)"),
    ("docs/page.md", "cumulative sums and products; the outer product; the product of all sizes; cumprod"),
    ("docs/page.md", "apart from this, file.tell() is a plain Python function; it takes place"),
    ("packages/dynamo/src/d.py", "regions are kept, in recordings and forms"),
    ("packages/bytecode/src/b.py", "the regions in pieces"),
    ("packages/guards/src/g/_native/leaf.c", "char *image;"),
    ("packages/backends/src/b.py", "the canonical forms; sets of strides; turned off"),
    ("packages/backends/src/b.py", 'OLD = "images"  # old-name'),
    ("packages/backends/src/b.py", "subpieces, untold, placeholders"),
]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_words", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(("path", "text", "words"), PLANTED, ids=[text or path for path, text, _ in PLANTED])
def test_a_planted_word_is_found(tool, path, text, words) -> None:
    assert sorted(one.word for one in tool.findings(path, text)) == words


@pytest.mark.parametrize(("path", "text"), ALLOWED, ids=[text for _, text in ALLOWED])
def test_a_word_that_is_right_in_its_context_passes(tool, path, text) -> None:
    assert tool.findings(path, text) == []


def test_each_phrase_of_the_table_is_found_in_prose_and_in_names(tool) -> None:
    for row in tool.ROWS:
        path = row.scope[0].replace("*", "x") + ".py"
        for phrase in row.words:
            joined = "".join(word.capitalize() for word in phrase.split())
            for text in (phrase, phrase.capitalize(), f"_{phrase.replace(' ', '_')}_x", f"Own{joined}Of"):
                assert row.say in {one.say for one in tool.findings(path, text)}, (path, text)


def test_findings_have_lines_and_say_what_to_say(tool) -> None:
    found = tool.findings("docs/page.md", "One\ntwo product\nthree alike")
    assert [str(one) for one in found] == [
        'docs/page.md:2: "product" -> say "matmul (GEMM); of elements: prod, mul"',
        'docs/page.md:3: "alike" -> say "same; equal; of the same structure"',
    ]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One word in a tracked file, one in a file that is not tracked, and a file without any."""
    for name, text in [("docs/a.md", "It is blind.\n"), ("docs/b.md", "It sees.\n"), ("docs/new.md", "blind\n")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "docs/a.md", "docs/b.md"], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "status", "printed"),
    [
        ([], 1, 'docs/a.md:1: "blind" -> say "fully masked (rows)"\n'),
        (["docs/b.md"], 0, ""),
        (["--summary"], 1, "     1 docs\n            1 fully masked (rows)\n     1 in all\n"),
    ],
    ids=["everything", "one file", "summary"],
)
def test_the_command(repository, given, status, printed) -> None:
    given = [str(repository / one) if one.endswith(".md") else one for one in given]
    command = [sys.executable, str(TOOL), "--root", str(repository), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, printed, "")
