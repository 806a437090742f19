"""Passes that the engine runs, with a warning that says why."""

from __future__ import annotations

import contextlib
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from harness import identity
from torch.utils.checkpoint import checkpoint

from framesmith_autograd_compiler import capture, disable, disabled, enable, gate
from framesmith_autograd_compiler.recorder import Recorder


def test_differentiable_pass():
    w = torch.ones(3, requires_grad=True)
    with capture(identity) as seen, pytest.warns(UserWarning, match="create_graph"):
        (g,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
        g.sum().backward()
    assert w.grad.tolist() == [6.0] * 3 and seen.runs == 1


def test_sparse_gradients():
    table = torch.randn(5, 3, requires_grad=True)
    ids = torch.tensor([1, 1, 4])
    with capture(identity):
        part = F.embedding(ids, table, sparse=True)
        table.register_hook(lambda grad: grad * 2)
        part.sum().backward()
    assert table.grad.is_sparse
    assert table.grad.to_dense().tolist() == [[0] * 3, [4] * 3, [0] * 3, [0] * 3, [2] * 3]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    def run(captured):
        torch.manual_seed(0)
        w = torch.randn(3, 3, requires_grad=True)
        x = torch.randn(2, 3, requires_grad=True)
        out = checkpoint(lambda x: (x @ w).tanh(), x, use_reentrant=reentrant).sum()
        if captured:
            with capture(identity):
                out.backward()
        else:
            out.backward()
        return w.grad, x.grad

    for one, two in zip(run(True), run(False)):
        torch.testing.assert_close(one, two)


def test_compiler_that_fails():
    def compiler(gm):
        raise ValueError("no such operator")

    w = torch.ones(3, requires_grad=True)
    with capture(compiler) as seen, pytest.warns(UserWarning, match="no such operator"):
        (w * 2).sum().backward()
    assert w.grad.tolist() == [2.0] * 3
    assert "no such operator" in seen.programs[0].reasons[0]


class Reported(Exception):
    """Raised in place of what failed."""


def report(where, error):
    raise Reported(where) from error


def test_a_failure_of_the_compiler_is_reported():
    def compiler(gm):
        raise ValueError("no such operator")

    w = torch.ones(3, requires_grad=True)
    with capture(compiler, on_failure=report), pytest.raises(Reported, match="a part of the backward pass") as caught:
        (w * 2).sum().backward()
    assert isinstance(caught.value.__cause__, ValueError)


def fails(self, *args, **kwargs):
    raise KeyError("in the recorder")


@pytest.mark.parametrize("name", ["__init__", "begin_capture", "validate_outputs", "_bind", "end_capture"])
def test_a_failure_of_the_recorder_is_reported(name, monkeypatch):
    monkeypatch.setattr(Recorder, name, fails)
    w = torch.ones(3, requires_grad=True)
    with capture(identity, on_failure=report) as seen:
        with pytest.raises(Reported, match="a backward pass"):
            (w * w).sum().backward()
        assert w.grad is None and seen.runs == 0
    with capture(identity) as seen, pytest.warns(UserWarning, match="KeyError: 'in the recorder'") as warnings_seen:
        (w * w).sum().backward()
        (w * w).sum().backward()
    assert w.grad.tolist() == [4.0] * 3 and len(seen.fallbacks) == 2 and len(warnings_seen) == 1


def test_what_cannot_be_captured_is_no_failure():
    w = torch.ones(3, requires_grad=True)
    with capture(identity, on_failure=report), pytest.warns(UserWarning, match="create_graph"):
        (w * w).sum().backward(create_graph=True)
    with capture(identity, on_failure=report), pytest.raises(RuntimeError, match="only for scalar"):
        (w * w).backward()


def test_anomaly_mode_is_the_engines():
    w = torch.zeros(3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), capture(identity) as seen:
        with pytest.raises(RuntimeError, match="nan values"):
            (w / w).sum().backward()
    assert seen.runs == 0


def test_error_of_the_user():
    w = torch.ones(3, requires_grad=True)
    loss = (w * w).sum()
    with capture(identity):
        with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
            (w * w).backward()
        w.data = torch.ones(3)
        loss.backward()
        out = w.exp()
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_other_threads_are_not_captured():
    w = torch.ones(3, requires_grad=True)
    with capture(identity) as seen:
        thread = threading.Thread(target=lambda: (w * 2).sum().backward())
        thread.start()
        thread.join()
        assert seen.runs == 0 and w.grad.tolist() == [2.0] * 3
        with disabled():
            (w * 2).sum().backward()
        assert seen.runs == 0
        (w * 2).sum().backward()
    assert seen.runs == 1 and w.grad.tolist() == [6.0] * 3


def test_threads_at_once():
    results = {}

    def work(number, captured):
        w = torch.randn(8, 8, generator=torch.Generator().manual_seed(number), requires_grad=True)
        for _ in range(20):
            (w @ w).tanh().sum().backward()
        results[number, captured] = w.grad

    def captured_work(number):
        with capture(identity):
            work(number, True)

    threads = [threading.Thread(target=captured_work, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=work, args=(n, False)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        torch.testing.assert_close(results[number, True], results[number, False])


@pytest.mark.parametrize("captured", [False, True])
def test_a_hook_that_waits_for_another_threads_pass(captured, monkeypatch):
    monkeypatch.setattr(gate, "PATIENCE", 0.05)
    found = []

    def work():
        v = torch.ones(3, requires_grad=True)
        with capture(identity) if captured else contextlib.nullcontext():
            (v * 2).sum().backward()
        found.append(v.grad.tolist())

    def hook(grad):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        return grad * 5

    w = torch.ones(3, requires_grad=True)
    with capture(identity) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            w.grad = None
            y = w * 3
            y.register_hook(hook)
            y.sum().backward()
            assert w.grad.tolist() == [15.0] * 3
    assert found == [[2.0] * 3] * 3 and seen.runs == 3 and seen.fallbacks == []


def test_passes_that_go_on_when_a_captured_one_is_done():
    """A plain pass that began beside a program may end after it."""
    begun, done = threading.Event(), threading.Event()

    def waits(grad):
        begun.set()
        assert done.wait(20)
        return grad * 7

    def work():
        y = v * 2
        y.register_hook(waits)
        y.sum().backward()

    v = torch.ones(3, requires_grad=True)
    thread = threading.Thread(target=work, daemon=True)

    def hook(grad):
        thread.start()
        assert begun.wait(20)

    w = torch.ones(3, requires_grad=True)
    with capture(identity) as seen:
        y = w * 3
        y.register_hook(hook)
        y.sum().backward()
        assert w.grad.tolist() == [3.0] * 3 and seen.runs == 1
        with pytest.warns(UserWarning, match="another pass is running"):
            (w * 2).sum().backward()
        done.set()
        thread.join(20)
        (w * 2).sum().backward()
    assert seen.runs == 2 and w.grad.tolist() == [7.0] * 3 and v.grad.tolist() == [14.0] * 3


def test_captures_nest():
    w = torch.ones(3, requires_grad=True)
    with capture(identity) as outer:
        (w * 2).sum().backward()
        with capture(identity) as inner:
            (w * 2).sum().backward()
        (w * 2).sum().backward()
    assert (outer.runs, inner.runs) == (2, 1)
    (w * 2).sum().backward()
    assert outer.runs == 2


def test_enable_until_disable():
    w = torch.ones(3, requires_grad=True)
    seen = enable(identity)
    (w * 2).sum().backward()
    disable()
    (w * 2).sum().backward()
    assert seen.runs == 1


def test_not_a_compiler():
    with pytest.raises(TypeError, match="must be callable, got int"), capture(3):
        pass
    with pytest.raises(TypeError, match="must be callable"):
        enable("x")
