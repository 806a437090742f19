"""Torch's rules in Python for operators on symbolic sizes, in place of C++ that asks what a size is at present.

Note [Rules that are not asked]: torch's rules for upsampling have other intermediate results than the operators, which
shows in half types, and that for dropout copies its input where nothing is dropped, where the operator gives back the
input itself. That for one_hot takes floats, which the operator refuses. Those for recurrent layers leave out dropout,
and what autocast does. A program can tell, so these operators stay what they are, but for the types of which the rule
is as exact. Those for upsampling take images without pixels, and give some, which the operators refuse.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C import DispatchKey

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

    _keep_operators()
    before, _asked.now = _asked.now, True
    try:
        with enable_python_dispatcher():
            yield
    finally:
        _asked.now = before


@functools.cache
def _keep_operators() -> None:
    """See Note [Rules that are not asked]. What others ask of torch's rules is answered as before."""
    import torch._decomp.decompositions  # adds the rules

    for name in torch.ops.aten:
        types = _served(name)
        if types is not None:
            packet = getattr(torch.ops.aten, name)
            for op in [getattr(packet, overload) for overload in packet]:
                for key in [key for key in _TAKING_APART if key in op.py_kernels]:
                    op.py_kernels[key] = _unless_asked(op, op.py_kernels[key], types)
                op._dispatch_cache.clear()


_TAKING_APART: Final = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


def _served(name: str) -> tuple[torch.dtype, ...] | None:
    """The types that torch's rule for an operator serves, if it does not serve all."""
    if _UPSAMPLING in name:
        return (torch.float32, torch.float64)
    return _SERVED.get(name)


def _resizes(op: Any) -> bool:
    return _UPSAMPLING in op.name()


def _checked(image: torch.Tensor, resized: torch.Tensor) -> torch.Tensor:
    """What an image became, of which neither may be empty but for the number of images."""
    for size in (*image.shape[1:], *resized.shape[2:]):
        torch._check(size > 0, lambda: "an image without pixels")  # type: ignore[no-untyped-call]
    return resized


_UPSAMPLING: Final = "upsample_"
_SERVED: Final[dict[str, tuple[torch.dtype, ...]]] = {
    "one_hot": (torch.int64,), **dict.fromkeys(("dropout", "lstm", "gru", "rnn_tanh", "rnn_relu"), ()),
}  # fmt: skip


def _unless_asked(op: Any, rule: Callable[..., Any], types: tuple[torch.dtype, ...]) -> Callable[..., Any]:
    @functools.wraps(rule)
    def choose(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _asked.now:
            return rule(input, *args, **kwargs)
        if input.dtype in types:
            return _checked(input, rule(input, *args, **kwargs)) if _resizes(op) else rule(input, *args, **kwargs)
        with torch._C._DisablePythonDispatcher():
            return op(input, *args, **kwargs)

    return choose
