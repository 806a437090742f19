"""Check that code, docs and tests use the field's words: each row of `ROWS` names a word and what to say instead.

Run as `python tools/check_words.py [--summary] [PATH ...]`. It reads the names and texts of tracked files; with paths,
of those under them. Prints `path:line: "word" -> say "..."` and exits 1 where it finds something. A line that holds
`old-name` may name a deprecated option.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".py", ".pyi", ".c", ".h", ".md", ".toml")
#: This table, and its tests, which plant its words.
UNREAD = ("tools/check_words.py", "integration_tests/repository/test_words.py", "benchmarks/results/*")
#: A line with it is not searched: deprecated names need their old words.
MARKER = "old-name"
#: What stands between two words of a phrase: a space, a hyphen, an underscore, or the end of a line.
GAP = r"(?:[ _-]|[ \t]*\n[ \t]*(?:(?:#:?|//|\*|>)[ \t]*)?)"

EVERYWHERE = ("*",)
AOT = ("packages/aot/*", "docs/packages/aot.md")
BACKENDS = ("packages/backends/*", "docs/packages/backends.md")
FRAMES = ("packages/frames/*", "docs/packages/frames.md")
ATTENTION = ("packages/backends/src/*attention*", "docs/design/*attention*")
CAPTURE = (*BACKENDS, "integration_tests/*captured*", "docs/design/*recorded*", "docs/design/*cuda-graph*")
WITHOUT_PIXELS = ("packages/*/src/*", "docs/*", "benchmarks/*", "README.md", "packages/*/README.md")


@dataclass(frozen=True)
class Row:
    """Words of this repository, and the field's.

    `words` are found in prose and as parts of identifiers, in any case, across line ends; `exact` is a regular
    expression, taken as it is. `unless` are regular expressions of contexts in which the words are right. Files are
    searched if they match one of `scope` and none of `beside`.
    """

    say: str
    words: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    scope: tuple[str, ...] = EVERYWHERE
    beside: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()


#: Of mathematics, and names of torch and of the standard library.
PRODUCTS = (
    r"scaled_dot_product_\w+",
    r"scaled[ -]dot[ -]product",
    r"itertools(\.| import [\w, ]*)product",
    r"(dot|outer|inner|cartesian|cross|kronecker|element-?wise)[ _-]products?",
    r"(?<![.\w])product\((?=.*repeat)",
    r"(cumulative|running)( sums?( and|,| or))? products?",
    r"products? of (the |all |its |their )?(elements|numbers|sizes|factors|integers|two integers|dimensions)",
    r"(sums?|sum),? (and |or )?products?",
)

ROWS = (
    Row("matmul (GEMM); of elements: prod, mul", ("product", "products"), unless=PRODUCTS),
    Row(
        'convolution; layout="channels_last"',
        ("image", "images"),
        scope=WITHOUT_PIXELS,
        beside=("packages/guards/src/*/_native/*",),
        unless=(r"InlineImage", r"image_size", r"(AutoModel|ViT)ForImage\w*", r"ImageNet", r'"image"'),
    ),
    Row("lay out; channels-last propagation; again", ("anew",)),
    Row("gather, scatter; indirect index", ("picked", "all picked"), scope=BACKENDS),
    Row(
        "indices, offsets, positions, elements, lines",
        ("places",),
        unless=(r"\b(takes?|change) places\b", r"\bplaces (it|them|the|a)\b", r"\bdecimal places\b"),
    ),
    Row("unbacked; data-dependent", ("data tell", "data tells", "data say", "told by data")),
    Row(
        "dynamic shapes; symbolic scalars",
        ("sizes that change", "numbers that change", "lengths that change", "shapes that change"),
    ),
    Row("assumed; specialised", ("taken for",), unless=(r"\btaken for \w+ in\b",)),
    Row(
        "report, warn, bind, know; known at run time",
        ("told", "tell", "tells", "telling", "teller", "tellers"),
        unless=(r"\.tell\(",),
    ),
    Row("row and column reduction in one pass; both", ("both ways",)),
    Row("reversed; transposed", ("turned",), scope=BACKENDS, unless=(r"turned (on|off|into)\b",)),
    Row("matmul, pointwise, matmul; attention pattern", ("sandwich", "sandwiches")),
    Row("probabilities", ("weights",), scope=ATTENTION),
    Row("P·V matmul", ("means",), scope=ATTENTION),
    Row("fully masked (rows)", ("blind",)),
    Row("training pattern", exact=(r"(?<![A-Za-z])Trained(?![a-z])",), scope=BACKENDS),
    Row("decompose; separate; deinterleaved", ("apart",), unless=(r"\b[Aa]part from\b",)),
    Row("approximate; reduced precision", ("coarse", "coarsely")),
    Row("via float64", ("through double",), (r"\bllvm[./]wide\b", r"\bimport wide\b", r"/wide\.py")),
    Row(
        "horizontal fusion",
        ("kernel set", "kernel sets", "sets of", "set of kernels", "sets of kernels"),
        (r"\b(test_)?sets\.py", r"\b(schedule|triton)[./]sets\b", r"\bimport sets\b"),
        scope=BACKENDS,
        unless=(r"\bsets of (?!kernels)", r"\bcuKernelSet\w+"),
    ),
    Row("same; equal; of the same structure", ("alike",)),
    Row("index-set splitting; intervals; chunks", ("piece", "pieces"), scope=BACKENDS),
    Row(
        "memory-bounded splitting",
        exact=(r"\bschedule[./]cuts\b", r"\bimport cuts\b", r"/(test_)?cuts\.py", r"\bwith_runs_cut\b"),
    ),
    Row("CUDA graph capture; captured graph", ("recording", "recordings", "graphed"), scope=CAPTURE),
    Row("captured", ("recorded",), scope=CAPTURE),
    Row(
        "candidates; configurations; variants",
        ("forms",),
        (r"\bForm\b",),
        scope=BACKENDS,
        unless=(r"\b(canonical|normal|closed) forms\b",),
    ),
    Row("autotuning", ("measured tile", "measured tiles"), (r"\blaunch[./](choosing|trials)\b", r"/test_choosing\b")),
    Row("mutated input", exact=(r"\b(mark_|is_)?rewritten_?inputs?\b", r"\bmark_rewritten\b", r"\bREWRITTEN\b")),
    Row("in backward", exact=(r"\bCOMPUTED_LATE\b", r"\bcomputed_late\b")),
    Row("lowers", ("takes whole",)),
    Row("propagate layouts", exact=(r"\blay_out\b", r"\bLayOut\b")),
    Row("detached; rehydrated", ("resting", "put to rest", "puts to rest", "awake")),
    Row("eager replay", exact=(r"\bAgain\b(?=[:(,)\]])", r"\bruntime[./]again\b"), scope=AOT),
    Row("interest filter", ("concern", "concerns", "concerned", "concerning"), scope=FRAMES),
    Row("output group", ("region", "regions"), scope=AOT),
    Row("saved for backward", ("kept",), scope=AOT),
    Row("low-precision types (LOW_PRECISION)", ("half type", "half types", "half the types")),
    Row("float8 / int8", ("numbers of 8 bits", "number of 8 bits")),
    Row("RNG stream; Philox or Mersenne state", ("random order", "order of random numbers")),
    Row("skipped; runs eagerly (say why)", ("left alone", "leave alone", "leaves alone", "leaving alone")),
    Row(
        "eagerly",
        ("plain python",),
        unless=(
            r"[Pp]lain Python('s)? (function|method|class|object|number|int|float|bool|value|type|code|list|name|"
            r"dict|scalar|loop|program|iter|generator|interpreter|script|tuple|container|property|descriptor|one)\w*",
        ),
    ),
    Row("a noun: 'Return the ...', 'The ...'", exact=(r'(?:"""|#: )(?:What|Who|Whose|How|Which|Where)\b',)),
)


def _capital(phrase: str) -> str:
    return "".join(word.capitalize() for word in phrase.split())


def _spellings(phrase: str) -> Iterator[str]:
    """A phrase in prose and in snake_case, in CamelCase, and as a constant."""
    words = [f"[{word[0].upper()}{word[0]}]{word[1:]}" if word[0].isalpha() else word for word in phrase.split()]
    yield rf"(?<![A-Za-z]){GAP.join(words)}(?![a-z])"
    yield rf"(?<![A-Z]){_capital(phrase)}(?![a-z])"
    yield rf"(?<![A-Za-z]){phrase.upper().replace(' ', '_')}(?![A-Za-z])"


@functools.cache
def _pattern(phrases: tuple[str, ...], exact: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join([*(one for phrase in phrases for one in _spellings(phrase)), *exact]))


@functools.cache
def _contexts(row: Row) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{one})" for one in row.unless), re.IGNORECASE) if row.unless else None


def _matches(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, one) for one in globs)


def _blank(found: re.Match[str]) -> str:
    """As many characters, so that positions stay; line ends stay, too."""
    return re.sub(r"[^\n]", " ", found[0])


@dataclass(frozen=True, order=True)
class Finding:
    """A word at a line of a file (line 0: in its name), and what to say instead."""

    path: str
    line: int
    word: str
    say: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.word}" -> say "{self.say}"'


def _found(text: str, row: Row, phrases: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Lines and words, of those phrases of the row and of its expressions."""
    pattern = _pattern(phrases, row.exact)
    if pattern.search(text) is None:
        return  # most often; blanking contexts takes longer
    if (contexts := _contexts(row)) is not None:
        text = contexts.sub(_blank, text)
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def findings(path: str, text: str) -> list[Finding]:
    """The words of the table in a file's name (relative to the root) and text, in the order of lines."""
    text = re.sub(rf"^.*\b{MARKER}\b.*$", "", text, flags=re.MULTILINE)
    lowered = f"/{path}\n{text}".lower()
    found = []
    for row in ROWS:
        if not _matches(path, row.scope) or _matches(path, row.beside):
            continue
        phrases = tuple(phrase for phrase in row.words if all(word in lowered for word in phrase.split()))
        if not phrases and not row.exact:
            continue  # searching every file for every row takes a minute
        found += [Finding(path, 0, word, row.say) for _, word in _found(f"/{path}", row, phrases)]
        found += [Finding(path, line, word, row.say) for line, word in _found(text, row, phrases)]
    return sorted(found)


def tracked(root: Path, paths: Sequence[str]) -> list[str]:
    """The files that git tracks under paths (all, without any), relative to the root, that the check reads."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", *(str(Path(path).resolve()) for path in paths)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name.endswith(SUFFIXES) and not _matches(name, UNREAD) and (root / name).exists()]


def package_of(path: str) -> str:
    """The part of the repository that a summary counts a file in: its package, or its topmost folder."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "packages" else parts[0]


def summary(found: Iterable[Finding]) -> str:
    """How many findings each package has, and of which words; the most first."""
    found = list(found)
    lines = []
    for package, count in Counter(package_of(one.path) for one in found).most_common():
        says = Counter(one.say for one in found if package_of(one.path) == package)
        lines.append(f"{count:6} {package}")
        lines += [f"       {number:6} {say}" for say, number in says.most_common()]
    return "\n".join([*lines, f"{len(found):6} in all"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and folders; everything, if none is given")
    parser.add_argument("--summary", action="store_true", help="counts by package and word in place of lines")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    given = parser.parse_args()
    names = tracked(given.root, given.paths)
    found = [one for name in names for one in findings(name, (given.root / name).read_text())]
    if given.summary:
        print(summary(found))
    else:
        print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
