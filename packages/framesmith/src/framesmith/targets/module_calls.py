"""The function that calls a compiled module: its one frame has hooks, `forward` and all."""

from __future__ import annotations

import builtins
from types import CodeType, FunctionType
from typing import Any

import torch

from framesmith_dynamo import admit

FILE = "<framesmith.compile>"


def _call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return self(*args, **kwargs)


def call_of(module: torch.nn.Module) -> FunctionType:
    """A function that calls the module given to it. Its code, and so what is compiled for it, is its own."""
    name = f"{type(module).__qualname__}.__call__"
    code = _call.__code__.replace(co_name="__call__", co_qualname=name, co_filename=FILE)
    admit(code)
    names = {"__name__": type(module).__module__, "__builtins__": builtins}
    return FunctionType(code, names, "__call__")


def is_module_call(code: CodeType) -> bool:
    """Whether this is the code of such a function."""
    return code.co_filename == FILE
