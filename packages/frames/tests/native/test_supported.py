"""Interpreters that are refused: one clear sentence at import."""

import importlib
import subprocess
import sys

import pytest


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
