"""Arguments of an operation in the form that the source text of an FX graph can express."""

from __future__ import annotations

import cmath
from enum import Enum
from typing import Any, Final

import torch
from torch import fx

#: Python's classes that torch accepts as dtypes.
DTYPES: Final = ((bool, torch.bool), (int, torch.int64), (float, torch.float64), (complex, torch.complex128))
#: The class of `torch.FloatTensor`, `torch.cuda.LongTensor` and their like, which name a dtype and a device.
TENSOR_TYPE: Final[Any] = type(torch.FloatTensor)


class NotExpressible(TypeError):
    """An argument, named in the message, has no source text."""


def _class(arg: Any) -> object:
    if isinstance(arg, TENSOR_TYPE) or arg is torch.Tensor:
        return f"{arg.__module__}.{arg.__name__}"
    dtype = next((dtype for cls, dtype in DTYPES if cls is arg), None)
    if dtype is None:
        raise NotExpressible(f"class {arg.__qualname__}")
    return dtype


def _leaf(arg: Any) -> Any:
    """The order of the tests matters: an enum member may be an int, and a tensor type is no instance of `type`."""
    if isinstance(arg, TENSOR_TYPE | type):
        return _class(arg)
    if isinstance(arg, Enum) and isinstance(arg, int | str):  # a union of flags has no name
        return int(arg) if isinstance(arg, int) else str.__str__(arg)
    if isinstance(arg, complex) and not cmath.isfinite(arg):
        raise NotExpressible(f"the number {arg}")
    if callable(arg) and not isinstance(arg, Enum):
        raise NotExpressible(getattr(arg, "__qualname__", repr(arg)))
    return arg


def fx_arguments(args: Any) -> Any:
    """Return equivalent arguments that have a source text. Raises NotExpressible."""
    return fx.node.map_aggregate(args, _leaf)
