"""Torch's rules in Python for operators on symbolic sizes, in place of C++ that asks what a size is at present.

Note [Dropout that copies]: torch's rule for dropout copies its input where nothing is dropped; the operator gives back
the input itself, which a program can tell. While our rules are asked for, this one is answered by the operator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


class _Asked(threading.local):
    """Whether this thread is in `python_kernels`."""

    now = False


_asked = _Asked()


@contextmanager
def python_kernels(mode: FakeTensorMode) -> Iterator[None]:
    """While active, operators run torch's rules for symbolic sizes. Nothing changes for a mode without symbols."""
    if mode.shape_env is None:
        yield
        return
    from torch._dispatch.python import enable_python_dispatcher

    _keep_inputs()
    before, _asked.now = _asked.now, True
    try:
        with enable_python_dispatcher():
            yield
    finally:
        _asked.now = before


@functools.cache
def _keep_inputs() -> None:
    """See Note [Dropout that copies]. What others ask of torch's rule is answered as before."""
    op: Any = torch.ops.aten.dropout.default
    for key, rule in list(op.py_kernels.items()):
        op.py_kernels[key] = _unless_asked(op, rule)
    op._dispatch_cache.clear()


def _unless_asked(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rule)
    def choose(*args: Any, **kwargs: Any) -> Any:
        if not _asked.now:
            return rule(*args, **kwargs)
        with torch._C._DisablePythonDispatcher():
            return op(*args, **kwargs)

    return choose
