"""Machine code of kernels in the cache folder: another process takes it, whatever happened to it in between."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from case_selection.sweeps import a_part
from graphs.tracing import trace
from llvmlite import binding

from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm import engine as native
from tools.warm_process import run_program

#: The beginning of both programs.
START = """
import sys
sys.path.insert(0, {tests!r})
import torch
from graphs.tracing import trace
from framesmith_backends import CpuBackend
"""

#: Compiles one graph, prints whether LLVM's code generator ran, and whether the result is right.
PROGRAM = """
from framesmith_backends.launch.llvm import engine as native
generated = []
optimizer = native.optimizer
native.optimizer = lambda: generated.append(1) or optimizer()
x = torch.randn(5, 40)
function = lambda a: (torch.softmax(a, -1), a.sum(0), a.sin())
call = CpuBackend().compile(trace(function, [x]), [x])
right = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(call([x]), function(x)))
print(len(generated), right)
"""

#: Compiles a graph that has no kernel, prints whether the result is right, and whether LLVM is there.
WITHOUT_KERNELS = """
x = torch.eye(3) + torch.ones(3, 3)
call = CpuBackend().compile(trace(lambda a: (torch.linalg.cholesky(a),), [x]), [x])
print(torch.equal(call([x])[0], torch.linalg.cholesky(x)), "llvmlite" in sys.modules)
"""


def run_once(program: str = PROGRAM) -> list[str]:
    code = START.format(tests=str(Path(__file__).parents[2])) + program
    done = run_program(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "framesmith").glob("module-*.o"))


def test_another_process_generates_no_code(tmp_path: Path) -> None:
    assert run_once() == ["1", "True"]
    assert len(files(tmp_path)) == 1
    assert run_once() == ["0", "True"]


def test_damaged_code_is_made_again(tmp_path: Path) -> None:
    run_once()
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for damaged in a_part((whole[:200] + bytes([whole[200] ^ 4]) + whole[201:], whole[:-9], b""), 3):
        file.write_bytes(damaged)
        assert run_once() == ["1", "True"]
        assert file.read_bytes() == whole


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "framesmith").write_text("a file is in the way")
    assert run_once() == ["1", "True"]
    assert run_once() == ["1", "True"]


def test_other_processors_and_other_versions_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "define i32 @one() {\n  ret i32 1\n}"
    code = native.machine_code("module", text)
    assert native.machine_code("module", text) == code and len(files(tmp_path)) == 1
    monkeypatch.setattr(binding, "llvm_version_info", (1, 2, 3))
    native.machine_code("module", text)
    assert len(files(tmp_path)) == 2


def test_two_writers_at_once(tmp_path: Path) -> None:
    x = torch.randn(7, 30)
    function = lambda a: (a * 2).sum(1) + a.exp().sum(1)  # noqa: E731
    graph = trace(function, [x])
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.append(CpuBackend().compile(graph, [x])([x])[0])) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and all(torch.allclose(one, function(x), atol=1e-5) for one in results)
    assert len(files(tmp_path)) == 1


def test_texts_hold_no_addresses() -> None:
    x = torch.randn(5)
    llvm = CpuBackend().explain(trace(lambda a: a + 1, [x])).llvm
    assert "@fs.tensor = external global" in llvm
    assert str(id(torch.Tensor)) not in llvm and str(id(torch.nn.Parameter)) not in llvm


def test_a_graph_without_kernels_loads_no_compiler() -> None:
    assert run_once(WITHOUT_KERNELS) == ["True", "False"]
