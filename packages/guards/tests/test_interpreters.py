"""Interpreters that are refused: free-threaded builds and subinterpreters."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from framesmith_guards.programs.native.probing import extension

SCRIPT = Path(__file__).parents[1] / "native_build.py"
IN_A_SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
made = interpreters.{creation}
interpreters.run_string(made, '''
import sys
try:
    import framesmith_guards
except ImportError as error:
    print(error, "torch" in sys.modules, sep="; ", flush=True)
''')
interpreters.destroy(made)
"""


def run(code):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.skipif(extension()[0] is None, reason=str(extension()[1]))
@pytest.mark.parametrize("creation", ["create()", "create('legacy')", "create(isolated=False)"])
def test_a_subinterpreter_is_refused(creation):
    done = run(IN_A_SUBINTERPRETER.format(creation=creation))
    if creation != "create()" and "TypeError: create() " in done.stderr:
        pytest.skip("no argument of this CPython's")
    assert done.stdout.strip() in (
        "framesmith_guards works in the main interpreter only; False",
        "module framesmith_guards._check does not support loading in subinterpreters; False",
    )
    assert done.returncode == 0


def test_a_free_threaded_build_is_refused():
    done = run("import sys; sys.abiflags = 't'; import framesmith_guards")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: framesmith_guards does not support free-threaded CPython: ")


@pytest.mark.skipif(not SCRIPT.is_file(), reason="the build script is in the checkout only")
def test_nothing_is_built_for_a_free_threaded_build(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("guards_native_build", SCRIPT)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1)
    with pytest.raises(build.BuildError, match="does not support free-threaded CPython"):
        build.compile_extension(tmp_path / "x.so")
