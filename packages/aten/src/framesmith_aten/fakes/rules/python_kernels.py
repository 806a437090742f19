"""Torch's rules in Python for operators on symbolic sizes, in place of C++ that specialises them.

Note [Rules that are not asked]: torch's rule for dropout copies its input where nothing is dropped, where the operator
returns the input itself. That for one_hot takes floats, which the operator refuses. Those for recurrent layers leave
out dropout and autocast. Programs can observe that, so these operators run as they are, except for dtypes for which the
rule is exact. Those for upsampling are replaced: see `upsampling`. Those for elementwise operators (`hardshrink`) save
other tensors for backward, so that a change of the input goes unnoticed: they serve symbolic scalars alone. The rule
for matmul returns a view of a matmul, where the operator's result is memory of its own, here too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from framesmith_aten.fakes.rules import dropout, elementwise, memory_reads, upsampling
from framesmith_guards.torch_adapter import DispatchKey, aten, unstable

if TYPE_CHECKING:
    from framesmith_guards.torch_adapter import FakeTensorMode


class _Asked(threading.local):
    """Whether this thread is in `python_kernels`."""

    now = False


_asked = _Asked()


@contextmanager
def python_kernels(mode: FakeTensorMode) -> Iterator[None]:
    """While active, operators run torch's rules for symbolic sizes; no effect for a mode without symbols."""
    if mode.shape_env is None:
        yield
        return

    _keep_operators()
    for op in _of_libraries.new():
        _try_first(op)
    before, _asked.now = _asked.now, True
    try:
        with unstable.enable_python_dispatcher():
            yield
    finally:
        _asked.now = before


@functools.cache
def _keep_operators() -> None:
    """See Note [Rules that are not asked]. Other users of torch's rules are not affected."""
    import torch._decomp.decompositions  # adds the rules

    for name in torch.ops.aten:
        packet = getattr(torch.ops.aten, name)
        for op in [getattr(packet, overload) for overload in packet]:
            keys = [key for key in _DECOMPOSING if key in op.py_kernels]
            for key in keys:
                if (instead := _instead(op, name, op.py_kernels[key])) is not None:
                    op.py_kernels[key] = _unless_asked(op.py_kernels[key], instead, _SERVED.get(name, ()))
            if keys:
                op._dispatch_cache.clear()
    for op in [*memory_reads.composites()]:
        _try_first(op)
    _add(aten.dropout.default, dropout.KEY, dropout.under_transforms)


def _add(op: Any, key: DispatchKey, rule: Callable[..., Any]) -> None:
    """Give an operator a rule for a dispatch key for which torch has none in Python."""
    op.py_kernels[key] = _unless_asked(functools.partial(op._op_dk, key), rule, ())
    op._dispatch_cache.clear()


_of_libraries: Final = memory_reads.OfLibraries()


def _try_first(op: Any) -> None:
    """Try the operator's own kernel before it runs on symbols."""
    own = functools.partial(op._op_dk, DispatchKey.CompositeImplicitAutograd)
    op.py_kernels[DispatchKey.CompositeImplicitAutograd] = memory_reads.tried(op, own, _is_asked)
    op._dispatch_cache.clear()


def _is_asked() -> bool:
    return _asked.now


def _instead(op: Any, name: str, rule: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the replacement of torch's rule; None where the rule serves."""
    if name in _SERVED:
        return memory_reads.tried(op, functools.partial(_unruled, op), _is_asked)
    if name == "matmul":
        return functools.partial(_without_view, rule)
    return elementwise.with_its_formula(op, rule) if torch.Tag.pointwise in op.tags else upsampling.rule_for(op)


_DECOMPOSING: Final = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)

#: The dtypes that torch's rules for some operators serve.
_SERVED: Final[dict[str, tuple[torch.dtype, ...]]] = {
    "one_hot": (torch.int64,), **dict.fromkeys(("dropout", "lstm", "gru", "rnn_tanh", "rnn_relu"), ()),
}  # fmt: skip


def _unless_asked(
    rule: Callable[..., Any], itself: Callable[..., Any], types: tuple[torch.dtype, ...]
) -> Callable[..., Any]:
    @functools.wraps(rule)
    def choose(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        run = rule if not _asked.now or input.dtype in types else itself
        return run(input, *args, **kwargs)

    return choose


def _unruled(op: Any, *args: Any, **kwargs: Any) -> Any:
    with unstable.DisablePythonDispatcher():
        return op(*args, **kwargs)


def _without_view(rule: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    result = rule(*args)
    computed = result._base
    if computed is None or any(computed is arg or computed is arg._base for arg in args):
        return result
    own: torch.Tensor = aten._unsafe_view(computed, result.shape)
    return own
