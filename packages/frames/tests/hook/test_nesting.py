"""Beside another PEP 523 hook, installed and removed in any order around ours."""

import importlib.machinery
import importlib.util
import itertools
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import framesmith_frames as frames


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip("the second hook is a C file, and there is no C compiler")
    target = tmp_path_factory.mktemp("other") / f"other_hook{sysconfig.get_config_var('EXT_SUFFIX')}"
    source = Path(__file__).with_name("other_hook.c")
    shape = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([compiler, "-O1", "-fPIC", include, str(source), *shape, "-o", str(target)], check=True)
    loader = importlib.machinery.ExtensionFileLoader("other_hook", str(target))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("other_hook", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def nothing_left_installed(other):
    yield
    other.off()
    plain()
    other.off()
    assert other.plain()
    plain()
    assert frames.hook_state() == {"linked": False, "on_top": False, "active_threads": 0, "suspended": 0}


def original(x):
    return x


def replacement(x):
    return plain() + 1000 + x


def plain():
    return 0


def asks(frame):
    if frame.code is original.__code__:
        return frames.Entry(lambda args, function: True, replacement.__code__)
    return frames.SKIP("other")


def test_above_ours(other):
    frames.set_callback(asks)
    other.on()
    before = other.count()
    assert original(1) == 1001
    assert other.count() > before
    other.off()
    assert original(2) == 1002
    frames.set_callback(None)
    assert other.plain()


def test_below_ours(other):
    other.on()
    frames.set_callback(asks)
    before = other.count()
    assert original(1) == 1001
    assert other.count() > before
    frames.set_callback(None)
    before = other.count()
    assert original(1) == 1
    assert other.count() > before


def test_we_leave_first_from_below(other):
    frames.set_callback(asks)
    other.on()
    frames.set_callback(None)
    assert frames.hook_state()["linked"]
    assert original(1) == 1
    frames.set_callback(asks)
    assert original(1) == 1001
    frames.set_callback(None)
    other.off()
    assert original(1) == 1
    plain()
    assert frames.hook_state()["linked"] is False


def test_each_below_the_other(other):
    """The other one installs itself again although it is below ours: without a check frames would loop."""
    other.on()
    frames.set_callback(asks)
    other.on()
    assert original(1) == 1001
    assert original(2) == 1002
    with pytest.raises(ZeroDivisionError):
        [1 // value for value in map(original, [-1000])]
    frames.set_callback(None)
    assert original(3) == 3


@pytest.mark.parametrize("steps", list(itertools.permutations(["on", "off", "set", "unset", "on", "set"], 5))[::9])
def test_any_order_gives_right_results(other, steps):
    for step in steps:
        if step == "on":
            other.on()
        elif step == "off":
            other.off()
        elif step == "set":
            frames.set_callback(asks)
        else:
            frames.set_callback(None)
        expected = {1, 1001} if frames.get_callback() is not None else {1}
        assert original(1) in expected
        assert list(map(original, [1])) == [original(1)]
    frames.set_callback(None)
    assert original(1) == 1


def test_deep_recursion_under_another_hook(other):
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    other.on()
    frames.set_callback(lambda frame: frames.SKIP("all"))
    assert depth(300) == 300
    frames.set_callback(None)


@pytest.mark.skipif(not hasattr(sys, "activate_stack_trampoline"), reason="perf trampolines came with 3.12")
def test_beside_perf_trampolines():
    program = """
import sys
import framesmith_frames as frames
def f(x): return x
def g(x): return -x
def callback(frame):
    return frames.Entry(lambda a, k: True, g.__code__) if frame.code is f.__code__ else frames.SKIP("other")
try:
    sys.activate_stack_trampoline("perf")
except ValueError as error:
    print([-1, -1, 1]); sys.exit()
with frames.activated(callback):
    results = [f(1), f(1)]
sys.deactivate_stack_trampoline()
print([*results, f(1)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[-1, -1, 1]\n"), done.stderr
