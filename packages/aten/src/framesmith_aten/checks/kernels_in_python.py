"""Operators whose kernel is a Python function that torch runs for fake tensors, too.

Its other effects would then happen while tracing. A kernel for autograd, or of a composite operator, is not even called
by the graph, which holds the operators under it.
"""

from __future__ import annotations

from framesmith_aten.operators import is_custom
from framesmith_aten.torch_adapter import unstable
from framesmith_guards.torch_adapter import OpOverload

#: Dispatch keys above those of fake tensors. (`register_autograd` registers its function, a formula, for `Autograd`.)
_ABOVE = ("", "CompositeImplicitAutograd", "AutogradCPU", "AutogradCUDA")
#: The key of a kernel that serves fake tensors where no other does.
_FOR_ALL = "CompositeExplicitAutograd"


def runs_while_traced(op: OpOverload) -> bool:
    """Whether a call on fake tensors runs a kernel that a user has written in Python."""
    if not is_custom(op):
        return False
    if any(_is_in_python(op, key) for key in _ABOVE):
        return True
    return _is_in_python(op, _FOR_ALL) and not _has_fake(op)


def _is_in_python(op: OpOverload, key: str) -> bool:
    names = [f"{op._opname}.{op._overloadname}"]
    names += [op._opname] if op._overloadname == "default" else []
    return any(f"{op.namespace}/{name}/{key}" in unstable.library_kernels for name in names)


def _has_fake(op: OpOverload) -> bool:
    """Whether the operator has a function for fake tensors alone."""
    name: str = op.name()  # type: ignore[no-untyped-call]
    if unstable.dispatch_has_kernel_for_dispatch_key(name, "Meta"):
        return True
    return unstable.custom_operators.find(name).fake_impl.kernel is not None
