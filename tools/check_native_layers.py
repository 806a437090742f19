"""Check that C files stand in layers: includes and calls go downwards, and no files include each other in a circle.

A folder below `_native/` is a layer. A unit is a C file and its header of the same name: what others use of it is
declared in that header, and who uses it includes that header. Run as `python tools/check_native_layers.py [ROOT]`;
exits 1 on a problem.
"""

from __future__ import annotations

import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

#: The layers of each package's C files, the lowest first; "" is `_native/` itself.
LAYERS: dict[str, tuple[str, ...]] = {
    "frames": ("", "data", "policy", "hook", "api"),
    "guards": ("", "facts", "tensors", "run", "calls", "api"),
}

NOT_CODE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^#[^\n]*', re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r'^#include "(?!internal/)(.+)"', re.MULTILINE)
NOT_PUBLIC = re.compile(r"(?!static|typedef|struct|enum)\w+ .*\w")


def units(folder: Path) -> dict[str, dict[str, str]]:
    """Return the text of each unit below a folder: unit -> {suffix: text}."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.rglob("*.[ch]")):
        found.setdefault(str(path.relative_to(folder).with_suffix("")), {})[path.suffix] = path.read_text()
    return found


def words(text: str) -> set[str]:
    """Return the words of C code, without comments, strings and directives."""
    return set(re.findall(r"\w+", NOT_CODE.sub(" ", text)))


def public_names(text: str) -> set[str]:
    """Return the functions and variables that are not static, declared or defined at the top level."""
    text = NOT_CODE.sub(" ", text)
    while "{" in text:
        text = re.sub(r"\{[^{}]*\}", ";", text)
    statements = [one for one in map(str.strip, text.split(";")) if NOT_PUBLIC.match(one)]
    found = set()
    for one in statements:
        function = re.match(r"[\w *]*?(\w+)\(", one)
        pointer = re.search(r"\w \(\*(\w+)\)\(", one)
        if pointer is not None:
            found.add(pointer[1])
        elif function is not None:
            found.add(function[1])
        elif one.startswith("extern"):
            found |= set(re.findall(r"(\w+)(?:\[\])?(?=,|$)", one))
    return found


def check_calls(graph: dict[str, set[str]], texts: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield the uses of names without their headers, and the definitions that no header declares."""
    declared = {unit: public_names(files.get(".h", "")) for unit, files in texts.items()}
    for unit, below in graph.items():
        used = set().union(*map(words, texts[unit].values()))
        for other in declared.keys() - below - {unit}:
            yield from (f"{unit} uses {name} of {other} without its header" for name in declared[other] & used)
        source = texts[unit].get(".c")
        if source is not None:
            own = {name for name in public_names(source) if not name.startswith("PyInit_")}
            yield from (f"{unit}.c defines {name}: not static, not in its header" for name in own - declared[unit])
            yield from (f"{unit}.h declares {name}, which {unit}.c lacks" for name in declared[unit] - words(source))


def check_folder(folder: Path, layers: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with the C files below a folder."""
    texts = units(folder)
    graph = {
        unit: {name.removesuffix(".h") for text in files.values() for name in INCLUDE.findall(text)} - {unit}
        for unit, files in texts.items()
    }

    def layer(unit: str) -> int:
        return layers.index(unit.rpartition("/")[0])

    for unit, below in graph.items():
        yield from (f"{unit} includes {other} of an upper layer" for other in below if layer(other) > layer(unit))
    yield from check_calls(graph, texts)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"cycle: {' -> '.join(error.args[1])}"


def check(root: Path) -> list[str]:
    """Return everything that is wrong with the C files below `root`, as messages."""
    problems = []
    for package, layers in LAYERS.items():
        folder = root / "packages" / package / "src" / f"framesmith_{package}" / "_native"
        problems += [f"packages/{package}: {problem}" for problem in check_folder(folder, layers)]
    return problems


def main() -> int:
    """Print the problems; 1 when there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"C layers: {len(problems)} problem(s)" if problems else "C layers: all includes and calls go downwards")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
