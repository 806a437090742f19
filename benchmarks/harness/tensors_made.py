"""The tensors of a step: how many objects of Python's are made for them, and the most bytes they hold at once."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Step = Callable[[], object]

#: The figure of a row that `peak_bytes` gives.
PEAK = "peak bytes"

#: CPython's `allocfunc` (Include/object.h), what a type's `tp_alloc` points at.
_ALLOCATE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
#: Bytes of a type object that are looked through for its `tp_alloc`.
_TYPE_BYTES = 400


def _slot(kind: type) -> Any:
    """The type's `tp_alloc`, as a number that can be changed: the one place that holds CPython's own function."""
    usual = ctypes.cast(ctypes.pythonapi.PyType_GenericAlloc, ctypes.c_void_p).value
    words = (ctypes.c_void_p * (_TYPE_BYTES // ctypes.sizeof(ctypes.c_void_p))).from_address(id(kind))
    slots = [at for at, word in enumerate(words) if word == usual]
    if len(slots) != 1:
        raise RuntimeError(f"{kind.__name__} is not made by PyType_GenericAlloc")
    return ctypes.c_void_p.from_buffer(words, slots[0] * ctypes.sizeof(ctypes.c_void_p))


@contextmanager
def counted_objects(kind: type = torch.Tensor) -> Iterator[list[int]]:
    """Count objects of exactly this type that are made meanwhile, in the one item of the list."""
    slot, count = _slot(kind), [0]
    usual = slot.value
    make = _ALLOCATE(usual)

    def allocate(of: int, items: int) -> object:
        count[0] += 1
        return make(of, items)

    counting = _ALLOCATE(allocate)
    slot.value = ctypes.cast(counting, ctypes.c_void_p).value
    try:
        yield count
    finally:
        slot.value = usual


def tensor_objects(step: Step) -> int:
    """Python objects of tensors that a step makes."""
    with counted_objects() as count:
        step()
    return count[0]


def peak_bytes(step: Step) -> int:
    """The most bytes that the step's own tensors hold at once, as torch's allocator reports to the profiler.

    What was alive before and is freed meanwhile (gradients of the step before) counts neither before nor after.
    """
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most
