"""Garbage collections while something is compiled."""

import gc
import os
import threading

import pytest
import torch

import framesmith
from framesmith.graphs.garbage_collection import full_collections_postponed


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def compiling_thread():
    """A thread that compiles until the event is set."""
    inside, leave = threading.Event(), threading.Event()

    def compiling():
        with full_collections_postponed():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=compiling)
    thread.start()
    inside.wait()
    return thread, leave


def test_no_full_collection_in_a_compilation_and_thresholds_come_back():
    gc.set_threshold(500, 3, 2)
    seen = []

    def backend(gm, examples):
        seen.append(gc.get_threshold())
        return gm.forward

    framesmith.compile(lambda x: x.sin() * 2, backend=backend)(torch.ones(3))
    assert seen == [(10_000, 3, 2**31 - 1)]
    assert gc.get_threshold() == (500, 3, 2)
    assert gc.isenabled()


def test_thresholds_come_back_where_the_collector_has_no_third(monkeypatch):
    """The incremental collector of CPython 3.14.0 ignores the third threshold and answers 0 for it."""
    gc.set_threshold(500, 3, 0)
    plain = gc.set_threshold
    monkeypatch.setattr(gc, "set_threshold", lambda young, middle=3, full=0: plain(young, middle, 0))
    with full_collections_postponed():
        assert gc.get_threshold() == (10_000, 3, 0)
    assert gc.get_threshold() == (500, 3, 0)


def test_thresholds_come_back_from_a_failure():
    gc.set_threshold(500, 3, 2)

    def backend(gm, examples):
        raise ValueError("no")

    with pytest.raises(framesmith.FramesmithError):
        framesmith.compile(lambda x: x.sin() * 2, backend=backend, strict=True)(torch.ones(3))
    assert gc.get_threshold() == (500, 3, 2)


def test_what_the_program_sets_meanwhile_stays():
    with full_collections_postponed():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_a_program_that_collects_nothing_goes_on_so():
    gc.set_threshold(0, 3, 2)
    with full_collections_postponed():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 3, 2)


def test_the_last_thread_brings_them_back():
    gc.set_threshold(500, 3, 2)
    thread, leave = compiling_thread()
    with full_collections_postponed():
        pass
    assert gc.get_threshold() == (10_000, 3, 2**31 - 1)
    leave.set()
    thread.join()
    assert gc.get_threshold() == (500, 3, 2)


def test_thresholds_saved_while_something_is_compiled_are_not_the_programs():
    gc.set_threshold(500, 3, 2)
    with full_collections_postponed():
        saved = gc.get_threshold()
    gc.set_threshold(*saved)
    with full_collections_postponed():
        pass
    assert gc.get_threshold() == (500, 3, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_process_forked_by_another_thread_collects_again():
    gc.set_threshold(500, 3, 2)
    thread, leave = compiling_thread()
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.get_threshold() == (500, 3, 2) else 1)
    status = os.waitpid(child, 0)[1]
    leave.set()
    thread.join()
    assert status == 0
