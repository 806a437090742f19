"""The build of the extension, and its messages where a compiler or headers are missing."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "native_build.py"


if not SCRIPT.is_file():
    pytest.skip("the tests stand without the source they build", allow_module_level=True)


@pytest.fixture
def native_build():
    spec = importlib.util.spec_from_file_location("native_build", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_compiler(native_build, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(native_build.BuildError, match=r"found no C compiler .* Install one .*apt install gcc"):
        native_build.compile_extension(tmp_path / "x.so")


def test_with_a_compiler_that_is_not_there(native_build, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(native_build.BuildError, match="'no-such-compiler' is not on the PATH"):
        native_build.compile_extension(tmp_path / "x.so")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_without_headers(native_build, monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(native_build.BuildError, match=r"found no Python.h in .* Install the headers of CPython 3\.\d+"):
        native_build.compile_extension(tmp_path / "x.so")


@pytest.mark.skipif(shutil.which("false") is None, reason="needs a compiler that fails")
def test_a_compiler_that_fails_is_quoted(native_build, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(native_build.BuildError, match="The C compiler failed"):
        native_build.compile_extension(tmp_path / "x.so")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_extension_that_loads(native_build, tmp_path):
    target = native_build.compile_extension(tmp_path / native_build.extension_name(), ["-O0"])
    program = f"""
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("_hook", {str(target)!r})
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_hook", loader))
loader.exec_module(module)
print(module.hook_state()["linked"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
