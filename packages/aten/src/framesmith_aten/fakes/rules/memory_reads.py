"""Operators whose own kernel reads a tensor's memory on the host: found by a probe, and not run on fakes.

Note [Memory that is not there]: composite operators (`gru` of packed sequences; a library's operator in C++ without a
kernel per device) run on fakes as they are, before any mode sees them. Fakes have no memory. For known sizes torch
refuses a kernel that asks for it; for symbolic ones it treats the tensor as empty, and the kernel reads at address 0,
which ends the process. So such a kernel is tried on fakes of the present sizes, once per kind of arguments. Of torch's
own operators those are tried that take integer tensors beside another tensor: lengths, offsets, indices, sizes; of a
library's, all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from framesmith_aten.fakes.defects import hands_on
from framesmith_aten.nested import tensors_in
from framesmith_aten.symbolic import hint_or_guess, is_symbolic
from framesmith_aten.table import OF_TORCH
from framesmith_guards.torch_adapter import (
    DataDependentOutputException,
    DispatchKey,
    FakeTensor,
    FakeTensorMode,
    no_dispatch,
    unstable,
)

#: Torch's errors to a kernel that asks for memory: of a fake of known sizes, and of a marked one.
_REFUSALS: Final = ("data is not allocated yet", "Cannot access data pointer of Tensor")
_COMPOSITE: Final = DispatchKey.CompositeImplicitAutograd
_MOST_VERDICTS: Final = 4096


class MemoryRead(DataDependentOutputException):
    """An operator that reads a tensor's elements on the host is called on fakes."""

    def __str__(self) -> str:
        return f"{self.func} reads elements of a tensor on the host"


def is_memory_read(error: BaseException) -> bool:
    """Whether an operator on fakes raised because it reads memory."""
    if isinstance(error, MemoryRead):
        return True
    return isinstance(error, RuntimeError) and any(refusal in str(error) for refusal in _REFUSALS)


def refuse_memory(mode: FakeTensorMode) -> None:
    """Let the mode's fakes raise where a kernel asks for their memory to write to it."""
    mode._allow_unsafe_data_ptr_access = False


def composites() -> Iterator[Any]:
    """Return torch's composite operators of several tensors for which torch has no rule in Python."""
    for name in unstable.dispatch_get_registrations_for_dispatch_key(_COMPOSITE.name):
        namespace, _, rest = name.partition("::")
        if namespace in OF_TORCH:
            yield from _suspects(namespace, *rest.partition(".")[::2])


def _suspects(namespace: str, name: str, overload: str) -> Iterator[Any]:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    op = getattr(packet, overload or "default", None)
    if op is not None and _COMPOSITE not in op.py_kernels and _takes_tensors(op) > 1:
        yield op


def _takes_tensors(op: Any) -> int:
    return sum("Tensor" in str(argument.type) for argument in op._schema.arguments if argument.alias_info is None)


class OfLibraries:
    """Composite operators of libraries that programs have named so far."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def new(self) -> Iterator[Any]:
        for namespace, operators in [*vars(torch.ops).items()]:
            if namespace in OF_TORCH or not isinstance(named := getattr(operators, "_dir", None), list):
                continue
            for name in named[self._seen.get(namespace, 0) :]:
                yield from _composite(getattr(operators, name, None))
            self._seen[namespace] = len(named)


def _composite(packet: Any) -> Iterator[Any]:
    for overload in packet.overloads() if hasattr(packet, "overloads") else ():
        op = getattr(packet, overload)
        if _COMPOSITE not in op.py_kernels and _has_kernel_in_cpp(op) and _takes_tensors(op):
            yield op


def _has_kernel_in_cpp(op: Any) -> bool:
    """Whether the operator is composite by a kernel in C++: Python kernels read no memory themselves."""
    namespace, _, name = op.name().partition("::")
    in_python = f"{namespace}/{name}/{_COMPOSITE.name}" in unstable.library_kernels
    return not in_python and bool(unstable.dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE.name))


_verdicts: dict[Any, bool] = {}


def check(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise MemoryRead where the operator's own kernel would read memory of these fakes; see the note above."""
    given = [*tensors_in((*args, *kwargs.values()))]
    suspects = [one for one in given if _may_be_read(op, one)]
    if not suspects or any(one.layout is not torch.strided for one in given):
        return
    kind = (op, *map(_kind, args), *((name, _kind(value)) for name, value in kwargs.items()))
    reads = _verdicts.get(kind)
    if reads is None:
        if len(_verdicts) >= _MOST_VERDICTS:
            _verdicts.clear()
        reads = _verdicts[kind] = _reads(op, args, kwargs)
    if reads:
        raise MemoryRead(op)


def _may_be_read(op: Any, tensor: torch.Tensor) -> bool:
    if not (isinstance(tensor, FakeTensor) and tensor._has_symbolic_sizes_strides):
        return False
    # Operators of libraries may read numbers of all types, on any device.
    whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    return op.namespace not in OF_TORCH or (whole and tensor.fake_device.type == "cpu")


def _kind(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim(), value.device)
    if isinstance(value, (list, tuple)):
        return tuple(map(_kind, value))
    return type(value) if is_symbolic(value) else (type(value), str(value))


def _reads(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    mode = next(type(one.fake_mode)() for one in tensors_in((*args, *kwargs.values())) if isinstance(one, FakeTensor))
    twins = _Twins(mode)
    outside = torch.inference_mode(False)  # within it the fakes' mode refuses other things first
    with unstable.disable_current_modes(), unstable.DisablePythonDispatcher(), outside, torch.no_grad():
        given = [twins.of(value) for value in args]
        named = {name: twins.of(value) for name, value in kwargs.items()}
        try:
            with mode:
                op(*given, **named)
        except Exception as error:  # its other refusals hold for the program's fakes as well
            return is_memory_read(error)
    return False


class _Twins:
    """Fakes of known sizes in place of those with symbols."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        return hint_or_guess(value)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes, strides = map(hint_or_guess, tensor.shape), map(hint_or_guess, tensor.stride())
        with no_dispatch(), unstable.DisableTorchFunction():
            meta = torch.empty_strided([*sizes], [*strides], dtype=tensor.dtype, device="meta")
            return FakeTensor(self._mode, meta, tensor.device)


def tried(op: Any, run: Callable[..., Any], asked: Callable[[], bool]) -> Callable[..., Any]:
    """Return `run`, which calls the operator's own kernel, with the check in front where `asked`."""

    @hands_on
    def checked(*args: Any, **kwargs: Any) -> Any:
        if asked():
            check(op, args, kwargs)
        return run(*args, **kwargs)

    return checked
