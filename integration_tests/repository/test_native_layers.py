"""`tools/check_native_layers.py` refuses C files that include or call upwards or in a circle."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools.check_native_layers import LAYERS, NOT_CODE, check, public_names, units

ROOT = Path(__file__).resolve().parents[2]


def test_no_call_goes_upwards_or_in_a_circle():
    assert check(ROOT) == []


def test_the_headers_are_read():
    found = units(ROOT / "packages/frames/src/framesmith_frames/_native")
    assert {"evaluate_paused", "hook_state"} <= public_names(found["hook/evaluator"][".h"])
    assert {"watched_setting", "divert"} <= public_names(found["policy/diversion"][".h"])
    assert {"reset_listener", "cache_add"} <= public_names(found["data/code_state"][".h"])
    assert {"Entry_Type", "entry_check"} <= public_names(found["data/records"][".h"])
    found = units(ROOT / "packages/guards/src/framesmith_guards/_native")
    assert {"requires_grad_of", "shim"} <= public_names(found["tensors/torch_shim"][".h"])
    assert {"run_instruction", "enter_no_torch_function"} <= public_names(found["run/instructions"][".h"])


def test_both_packages_have_one_check_struct():
    texts = (
        (ROOT / "packages" / package / "src" / f"framesmith_{package}" / "_native" / path).read_text()
        for package, path in (("frames", "check_abi.h"), ("guards", "api/module.c"))
    )
    structs = [re.search(r"typedef struct \{([^}]*)\} framesmith_check_v1;", NOT_CODE.sub("", text)) for text in texts]
    frames, guards = (struct[1].split() for struct in structs)
    assert frames == guards


@pytest.mark.parametrize(
    ("package", "path", "line", "problem"),
    [
        ("frames", "data/owner.c", '#include "hook/replace.h"', "data/owner includes hook/replace of an upper layer"),
        ("frames", "data/interest.c", '#include "data/code_state.h"', "cycle: "),
        (
            "frames",
            "hook/evaluator.c",
            "static void x(void) { dispatch(0, 0, 0, 0, 0); }",
            "of hook/dispatch without its header",
        ),
        ("frames", "hook/replace.c", "int y(void) { return 0; }", "replace.c defines y: not static, not in its header"),
        ("guards", "run/instructions.c", '#include "run/blocks.h"', "cycle: "),
        ("guards", "facts/state.c", '#include "run/program.h"', "facts/state includes run/program of an upper layer"),
    ],
)
def test_a_violation_is_reported(tmp_path, package, path, line, problem):
    for name in LAYERS:
        native = Path("packages", name, "src", f"framesmith_{name}", "_native")
        shutil.copytree(ROOT / native, tmp_path / native)
    changed = tmp_path / "packages" / package / "src" / f"framesmith_{package}" / "_native" / path
    changed.write_text(f"{changed.read_text()}\n{line}\n")
    assert any(problem in one for one in check(tmp_path)), check(tmp_path)
