"""Machine code that is made while the program goes on: waited for, failing, met by threads, forked beside."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from graphs.tracing import mutating, trace

from framesmith_backends import CpuBackend
from framesmith_backends.launch import background
from framesmith_backends.launch.background import at_work, begin
from framesmith_backends.launch.llvm import engine as native
from tools.warm_process import run_program


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Gate:
    """LLVM that begins when it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        made = native.machine_code

        def waiting(kind: str, text: str) -> bytes:
            self.entered.set()
            assert self.open.wait(30)
            return made(kind, text)

        monkeypatch.setattr(native, "machine_code", waiting)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    native.machine()
    return Gate(monkeypatch)


def test_a_graph_is_compiled_before_its_machine_code_is_there(gate: Gate) -> None:
    x = torch.randn(11)
    call = CpuBackend().compile(trace(lambda a: a * 11 + 2, [x]), [x])
    assert gate.entered.wait(30)
    gate.open.set()
    assert torch.equal(call([x])[0], x * 11 + 2)


def test_later_calls_run_the_launchers_own_code(gate: Gate) -> None:
    x = torch.randn(12)
    call = CpuBackend().compile(trace(lambda a: a * 12 + 2, [x]), [x])
    first = call.__code__  # type: ignore[attr-defined]
    assert first.co_filename == background.__file__
    gate.open.set()
    call([x])
    assert call.__code__.co_filename == "<framesmith launcher>"  # type: ignore[attr-defined]
    assert call.__globals__["_begin_call"] is call  # type: ignore[attr-defined]
    assert torch.equal(call([x])[0], x * 12 + 2)


def test_threads_that_meet_at_the_first_call(gate: Gate) -> None:
    x = torch.randn(13)
    call = CpuBackend().compile(trace(lambda a: (a * 13 + 2, a.sum()), [x]), [x])
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(call([x])[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.open.set()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(torch.equal(one, x * 13 + 2) for one in results)


def fail(kind: str, text: str) -> bytes:
    raise MemoryError("no code")


def test_a_failure_is_reported_at_the_first_call_and_aten_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "machine_code", fail)
    x, kept = torch.randn(14), torch.zeros(14)
    reported: list[tuple[str, Exception]] = []
    graph = mutating(lambda a, b: (b + 1, a * 14 + 2), [x, kept], [1])
    call = CpuBackend().compile(graph, [x, kept], on_error=lambda *what: reported.append(what))
    assert not reported
    for n in (1, 2):
        assert torch.equal(call([x, kept])[-1], x * 14 + 2)
        assert torch.equal(kept, torch.full((14,), float(n)))  # once at each call
    ((where, error),) = reported
    assert where == "a graph (inference)" and isinstance(error, MemoryError)


def test_a_failure_is_raised_without_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "machine_code", fail)
    x = torch.randn(15)
    call = CpuBackend().compile(trace(lambda a: a * 15 + 2, [x]), [x])
    given = []
    for _ in range(3):
        one = x.clone()
        given.append(weakref.ref(one))
        with pytest.raises(MemoryError, match="no code"):
            call([one])
        del one
    gc.collect()
    assert sum(one() is not None for one in given) <= 1  # what the last error's frames hold


def test_attention_that_cannot_be_compiled_is_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.native_ops.attention import operator as attention

    attention.CODE.clear()
    real = native.machine_code
    monkeypatch.setattr(native, "machine_code", lambda kind, text: (fail if kind == "attention" else real)(kind, text))
    q, k, v = torch.randn(3, 1, 2, 64, 32)
    reported: list[str] = []
    graph = trace(lambda a, b, c: (torch.nn.functional.scaled_dot_product_attention(a, b, c) + 1,), [q, k, v])
    call = CpuBackend().compile(graph, [q, k, v], on_error=lambda where, error: reported.append(where))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v) + 1
    try:
        torch.testing.assert_close(call([q, k, v])[0], wanted)
        assert reported == ["a graph (inference)"]
    finally:
        attention.CODE.clear()


def test_without_threads_it_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    future = begin(lambda: 3)
    assert future.done() and future.result() == 3
    x = torch.randn(16)
    call = CpuBackend().compile(trace(lambda a: a * 16 + 2, [x]), [x])
    assert torch.equal(call([x])[0], x * 16 + 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_child_is_forked_when_the_code_is_there() -> None:
    program = f"""
import os, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
from graphs.tracing import trace
from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm import engine as native
made = native.machine_code
native.machine_code = lambda kind, text: (time.sleep(0.5), made(kind, text))[1]
x = torch.randn(17)
call = CpuBackend().compile(trace(lambda a: a * 17 + 2, [x]), [x])
other = trace(lambda a: a * 18 + 2, [x])
child = os.fork()
if child == 0:  # both what was begun before, and something new
    right = torch.equal(call([x])[0], x * 17 + 2) and torch.equal(CpuBackend().compile(other, [x])([x])[0], x * 18 + 2)
    os._exit(0 if right else 1)
status = os.waitpid(child, 0)[1]
print(status, torch.equal(call([x])[0], x * 17 + 2))
"""
    assert run_program(program).stdout.split() == ["0", "True"]


def test_a_process_ends_while_code_is_made() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
from graphs.tracing import trace
from framesmith_backends import CpuBackend
x = torch.randn(19)
CpuBackend().compile(trace(lambda a: (torch.softmax(a * 19, -1), a.sum(), a.sin()), [x]), [x])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_waits_for_all_that_is_at_work() -> None:
    release, inside, order = threading.Event(), threading.Event(), []

    def working() -> None:
        with at_work():
            inside.set()
            release.wait(30)
            order.append("worked")

    def forking() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        order.append("forked")
        os.waitpid(child, 0)

    threads = [threading.Thread(target=working), threading.Thread(target=forking)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    begun = begin(lambda: order.append("begun"))  # before or after the fork, not beside it
    release.set()
    for thread in threads:
        thread.join()
    begun.result()
    assert sorted(order) == ["begun", "forked", "worked"] and order.index("worked") < order.index("forked")


def test_who_is_at_work_may_fork() -> None:
    with at_work():
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_a_launcher_that_is_never_called_lets_go_of_its_graph(gate: Gate) -> None:
    x = torch.randn(20)
    graph = trace(lambda a: a * 20 + 2, [x])
    call = CpuBackend().compile(graph, [x])
    alive = weakref.ref(graph)
    del graph
    gate.open.set()
    with at_work():
        pass
    for _ in range(200):
        if call.__globals__["_begin_call"] is call:  # type: ignore[attr-defined]
            break
        time.sleep(0.05)
    gc.collect()
    assert alive() is None
    assert torch.equal(call([x])[0], x * 20 + 2)


def test_attention_that_failed_once_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.native_ops.attention import operator as attention

    attention.CODE.clear()
    q, k, v = torch.randn(3, 1, 2, 64, 32)
    function = lambda a, b, c: (torch.nn.functional.scaled_dot_product_attention(a, b, c) + 1,)  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(native, "machine_code", fail)
        CpuBackend().compile(trace(function, [q, k, v]), [q, k, v], on_error=lambda *what: None)([q, k, v])
    reported: list[str] = []
    call = CpuBackend().compile(trace(function, [q, k, v]), [q, k, v], on_error=lambda where, _: reported.append(where))
    torch.testing.assert_close(call([q, k, v]), function(q, k, v))
    assert not reported
