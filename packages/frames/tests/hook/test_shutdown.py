"""The interpreter ends, forks or is interrupted with the hook on."""

import os
import signal
import subprocess
import sys

import pytest

import framesmith_frames as frames

PRELUDE = """
import sys, threading, time, atexit
import framesmith_frames as frames
def f(x): return x
def g(x): return -x
def callback(frame):
    return frames.Entry(lambda a, k: True, g.__code__) if frame.code is f.__code__ else frames.SKIP("other")
"""

PROGRAMS = {
    "left on": "frames.set_callback(callback); print(f(1), flush=True)",
    "left on with entries, objects and destructors": """
class Noisy:
    def __del__(self): f(2)
keep = Noisy()
frames.set_callback(callback); print(f(1), flush=True)
""",
    "with an exit handler": "atexit.register(lambda: print(f(1), flush=True)); frames.set_callback(callback)",
    "with a daemon thread inside": """
def work():
    frames.set_callback(callback)
    while True: f(1)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print(-1, flush=True)
""",
    "with a wrapper left": "c = frames.CompiledFunction(f, callback); print(c(1), flush=True); c.me = c",
    "by an exception": "frames.set_callback(callback); print(f(1), flush=True); sys.exit(0)",
    "after the module was imported twice": """
frames.set_callback(callback)
for name in [n for n in sys.modules if n.startswith('framesmith_frames')]: del sys.modules[name]
import framesmith_frames as again
print(f(1), flush=True)
""",
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_interpreter_ends_well(name):
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PRELUDE + PROGRAMS[name]], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "-1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_with_other_active_threads():
    program = """
import os, warnings
warnings.simplefilter("ignore")
ready = threading.Event()
def work():
    frames.set_callback(callback)
    f(1)
    ready.set()
    time.sleep(60)
threading.Thread(target=work, daemon=True).start()
ready.wait()
child = os.fork()
if child == 0:
    assert f(1) == 1
    with frames.activated(callback):
        assert f(1) == -1
    assert frames.hook_state()["active_threads"] == 0, frames.hook_state()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_signal_while_a_callback_runs():
    """The signal handler's exception reaches the caller, and the next call is not affected."""
    frames.set_error_handler(None)

    class Alarm(BaseException):
        pass

    def handler(number, frame):
        raise Alarm

    def target():
        return "eager"

    def callback(frame):
        if frame.code is target.__code__:
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                pass
        return frames.SKIP("all")

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with frames.activated(callback):
            with pytest.raises(Alarm):
                target()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert target() == "eager"
