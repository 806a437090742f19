"""Interpreters that are refused: one clear sentence at import."""

import importlib
import platform
import re
import struct
import subprocess
import sys

import pytest

from framesmith_frames import _hook

FIELDS = ["size", "previous", "executable", "instr_ptr", "localsplus", "owner"]


def test_a_free_threaded_build():
    program = """
import sys
sys.abiflags = "t"
try:
    import framesmith_frames
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    sentence = "framesmith-frames does not support free-threaded CPython: use a build of CPython with the GIL.\n"
    assert (done.returncode, done.stdout) == (0, sentence), done.stderr


@pytest.mark.parametrize("config", ["isolated", "legacy"])
def test_a_subinterpreter(config, tmp_path):
    interpreters = pytest.importorskip("_interpreters", reason="it came with 3.13")
    answer = tmp_path / "answer"
    program = f"""
try:
    import framesmith_frames
    text = "imported"
except ImportError as error:
    text = str(error)
with open({str(answer)!r}, "w") as file:
    file.write(text)
"""
    created = interpreters.create(config)
    try:
        interpreters.run_string(created, program)
    finally:
        interpreters.destroy(created)
    assert answer.read_text() in {
        "module framesmith_frames._hook does not support loading in subinterpreters",
        "framesmith_frames works in the main interpreter only",
    }
    assert importlib.import_module("framesmith_frames").hook_state()["linked"] is False


def test_the_layout_of_frames_is_that_of_the_running_interpreter():
    layout = _hook.frame_layout()
    names = [name for name, _, _ in layout]
    assert names == {(3, 11): [], (3, 12): [], (3, 13): FIELDS}.get(
        sys.version_info[:2], [*FIELDS, "stackpointer", "tlbc_index"]
    )
    assert [built for _, built, _ in layout] == [running for _, _, running in layout]
    _hook.check_frame_layout(layout)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_frames_that_differs(field):
    layout = [(name, 8 * place, 8 * place + 4 * (name == field)) for place, name in enumerate(FIELDS)]
    place = 8 * FIELDS.index(field)
    sentence = (
        rf"framesmith-frames was built for CPython 3\.{sys.version_info[1]}\.\S+; this is CPython "
        rf"{re.escape(platform.python_version())}, whose frames differ \({field}: {place + 4}, not {place}\): "
        r"reinstall it from source\."
    )
    with pytest.raises(ImportError, match=f"^{sentence}$"):
        _hook.check_frame_layout(layout)


@pytest.mark.skipif(not _hook.frame_layout(), reason="the interpreter does not report the layout of its frames")
def test_an_interpreter_whose_frames_differ():
    """A process that changes what its interpreter reports, then imports the extension."""
    running = [value for _, _, value in _hook.frame_layout()]
    reported = struct.pack(f"={len(running)}Q", *running)
    program = f"""
import ctypes
start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
place = ctypes.string_at(start, 2000).index({reported!r})
ctypes.c_uint64.from_address(start + place + 8 * {FIELDS.index("owner")}).value += 1
try:
    import framesmith_frames
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    owner = running[FIELDS.index("owner")]
    assert f"whose frames differ (owner: {owner + 1}, not {owner}): reinstall" in done.stdout, done.stderr
