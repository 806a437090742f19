"""Arguments as the source text of an FX graph can say them."""

from __future__ import annotations

import cmath
from enum import Enum
from typing import Any, Final

import torch
from torch import fx

#: Python's classes that torch takes for dtypes.
DTYPES: Final = ((bool, torch.bool), (int, torch.int64), (float, torch.float64), (complex, torch.complex128))
#: The class of `torch.FloatTensor`, `torch.cuda.LongTensor` and their like, which name a dtype and a device.
TENSOR_TYPE: Final[Any] = type(torch.FloatTensor)


class NotExpressible(TypeError):
    """There is no text for an argument, which the message names."""


def _class(arg: Any) -> object:
    if isinstance(arg, TENSOR_TYPE) or arg is torch.Tensor:
        return f"{arg.__module__}.{arg.__name__}"
    dtype = next((dtype for cls, dtype in DTYPES if cls is arg), None)
    if dtype is None:
        raise NotExpressible(f"class {arg.__qualname__}")
    return dtype


def _leaf(arg: Any) -> Any:
    """The rows in their order: an enum member may be an int, a tensor type is a class in all but its own class."""
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
    """Arguments that an operation has taken, as what means the same to it and has a text. Raises NotExpressible."""
    return fx.node.map_aggregate(args, _leaf)
