"""The C files stand in layers: includes and calls go downwards, without a cycle."""

import graphlib
import re
import shutil
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "src" / "framesmith_frames" / "_native"
#: Lowest first; "" holds compat.h and check_abi.h.
LAYERS = ("", "data", "policy", "hook", "api")

if not NATIVE.is_dir():
    pytest.skip("the tests stand without the sources that they read", allow_module_level=True)

NOT_CODE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^#[^\n]*', re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r'^#include "(?!internal/)(.+)"', re.MULTILINE)


def units(root):
    """The text of each unit (a C file and its header): unit -> {suffix: text}."""
    found = {}
    for path in sorted(root.rglob("*.[ch]")):
        found.setdefault(str(path.relative_to(root).with_suffix("")), {})[path.suffix] = path.read_text()
    return found


def includes(texts):
    return {name.removesuffix(".h") for text in texts.values() for name in INCLUDE.findall(text)}


def words(text):
    return set(re.findall(r"\w+", NOT_CODE.sub(" ", text)))


def public_names(text):
    """Names of the functions and variables that are not static, declared or defined at the top level."""
    text = NOT_CODE.sub(" ", text)
    while "{" in text:
        text = re.sub(r"\{[^{}]*\}", ";", text)
    kinds = re.compile(r"(?!static|typedef|struct|enum)\w+ .*\w")
    named = [s for s in map(str.strip, text.split(";")) if kinds.match(s) and ("(" in s or s.startswith("extern"))]
    functions = {
        name[1] for s in named if (name := re.match(r"[\w *]*?(\w+)\(", s)) and "(*" not in s[: name.end() + 1]
    }
    pointers = {name[1] for s in named if (name := re.search(r"\w \(\*(\w+)\)\(", s))}
    variables = {name for s in named if "(" not in s for name in re.findall(r"(\w+)(?:\[\])?(?=,|$)", s)}
    return functions | pointers | variables


def layer(unit):
    return LAYERS.index(unit.rpartition("/")[0])


def problems(root):
    found = []
    all_units = units(root)
    graph = {unit: includes(texts) - {unit} for unit, texts in all_units.items()}
    exported = {unit: public_names(texts.get(".h", "")) for unit, texts in all_units.items()}
    for unit, below in graph.items():
        used = set().union(*map(words, all_units[unit].values()))
        found += [f"{unit} includes {other} of an upper layer" for other in below if layer(other) > layer(unit)]
        for other in exported.keys() - below - {unit}:
            found += [f"{unit} uses {name} of {other} without its header" for name in exported[other] & used]
        source = all_units[unit].get(".c")
        if source is not None:
            own = {name for name in public_names(source) if not name.startswith("PyInit_")}
            found += [f"{unit}.c defines {name}: not static, not in its header" for name in own - exported[unit]]
            found += [f"{unit}.h declares {name}, which {unit}.c lacks" for name in exported[unit] - words(source)]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"cycle: {' -> '.join(error.args[1])}")
    return found


def test_no_call_goes_upwards_or_in_a_circle():
    assert problems(NATIVE) == []


def test_the_headers_are_read():
    found = units(NATIVE)
    assert {"evaluate", "evaluate_paused", "hook_state"} <= public_names(found["hook/evaluator"][".h"])
    assert {"watched_setting", "divert"} <= public_names(found["policy/diversion"][".h"])
    assert {"reset_listener", "cache_get"} <= public_names(found["data/code_state"][".h"])
    assert {"Entry_Type", "entry_check"} <= public_names(found["data/records"][".h"])


@pytest.mark.parametrize(
    ("path", "line", "problem"),
    [
        ("data/owner.c", '#include "hook/replace.h"', "data/owner includes hook/replace of an upper layer"),
        ("data/interest.c", '#include "data/code_state.h"', "cycle: "),
        ("hook/evaluator.c", "static void x(void) { dispatch(0, 0, 0, 0, 0); }", "of hook/dispatch without its header"),
        ("hook/replace.c", "int y(void) { return 0; }", "hook/replace.c defines y: not static, not in its header"),
    ],
)
def test_a_violation_is_reported(tmp_path, path, line, problem):
    copy = tmp_path / "_native"
    shutil.copytree(NATIVE, copy)
    with (copy / path).open("a") as file:
        file.write("\n" + line + "\n")
    assert any(problem in one for one in problems(copy)), problems(copy)
