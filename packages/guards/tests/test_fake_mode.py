"""Fake modes are made without torch._dynamo, and torch.compile works as ever afterwards."""

import subprocess
import sys
import textwrap

import pytest
import torch

from framesmith_guards import GuardError, active_fake_mode, fake_mode_of, new_fake_mode


def run(script):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


USE = """
    import sys, threading, torch
    from framesmith_guards import new_fake_mode
    mode = new_fake_mode()
    base = torch.randn(4, 6)
    weight = mode.from_tensor(torch.nn.Parameter(torch.randn(4, 4)))
    view, whole = mode.from_tensor(base[:, 1:3]), mode.from_tensor(base)
    assert view.stride() == (6, 1) and view.storage_offset() == 1 and view._base is whole
    mode.from_tensor(torch.tensor(3.0))
    with mode:
        y = torch.nn.functional.linear(weight, weight).softmax(-1)
        y.sum().backward()
        assert weight.grad.shape == (4, 4)
        q = torch.nn.functional.conv2d(torch.empty(1, 3, 8, 8), torch.empty(4, 3, 3, 3))
        torch.nn.functional.batch_norm(q, torch.zeros(4), torch.ones(4), training=True)
        torch.nn.functional.cross_entropy(torch.empty(3, 4), torch.zeros(3, dtype=torch.long))
        torch.nn.functional.dropout(q); torch.sort(q); torch.stack([q, q])[0, :, 1:3].clone()
"""


def test_torch_dynamo_is_not_imported():
    assert run(USE + "\n    print('torch._dynamo' in sys.modules)") == ["False"]


def test_torch_compile_works_afterwards_also_in_a_thread():
    script = """
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter
    counter = CompileCounter()
    def f(x):
        return torch.nn.functional.softmax(x, -1).sin() + 1
    x = torch.randn(3)
    results = []
    def work():
        results.append(torch.allclose(torch.compile(f, backend=counter)(x), f(x)))
    work()
    thread = threading.Thread(target=work); thread.start(); thread.join()
    assert counter.frame_count >= 1 and counter.op_count >= 3
    with mode:
        torch.nn.functional.gelu(torch.empty(3)).abs_()
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    print(*results, torch._dynamo.config.fake_tensor_cache_enabled, len(list(exported.graph.nodes)) > 3)
    """
    assert run(USE + script) == ["True", "True", "True", "True"]


def test_nothing_special_once_torch_dynamo_is_imported():
    script = """
    import torch._dynamo
    from torch._subclasses.fake_tensor import FakeTensorMode
    from framesmith_guards import new_fake_mode
    print(type(new_fake_mode()) is FakeTensorMode)
    """
    assert run(script) == ["True"]


def test_light_and_plain_modes_agree():
    script = """
    import sys, torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from framesmith_guards import new_fake_mode
    def facts(mode):
        x = mode.from_tensor(torch.randn(2, 3, requires_grad=True).t())
        with mode:
            y = torch.nn.functional.softmax(x @ x.t(), -1)
        return x.shape, x.stride(), x.requires_grad, x.is_leaf, y.shape, y.stride(), y.dtype, x.device
    light = new_fake_mode()
    names = {k for k in vars(light)}
    left = facts(light)
    plain = FakeTensorMode()
    print(left == facts(plain), names == {k for k in vars(plain)}, isinstance(light, FakeTensorMode))
    """
    assert run(script) == ["True", "True", "True"]


def test_the_mode_of_values():
    one, other = new_fake_mode(), new_fake_mode()
    a, b = one.from_tensor(torch.ones(2)), other.from_tensor(torch.ones(2))
    assert fake_mode_of([1, {"x": (a,)}]) is one
    assert fake_mode_of([torch.ones(1), "x"]) is None
    with pytest.raises(GuardError, match="two different fake modes"):
        fake_mode_of([a, b])
    assert active_fake_mode() is None
    with one:
        assert active_fake_mode() is one
