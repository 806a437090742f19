"""oneDNN's LSTM layer and its derivative, each as one call of a graph with gradients.

`aten::mkldnn_rnn_layer` checks whether gradients are recorded, and only then saves a workspace for its derivative.
While a compiled forward graph runs they are not. The operators here are torch's with the workspace always saved. Only
oneDNN knows its size: the graph's tensor shows its first byte and owns all of it; the derivative refuses a copy of that
byte.

A backend may compute the layer with a workspace of its own while the derivative runs here, where the backward graph is
run as traced. Such a workspace begins with a mark (see `register`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from framesmith_aten.operators import arguments
from framesmith_aten.table import OWN_NAMESPACE
from framesmith_guards.torch_adapter import DispatchKey, OpOverload, aten

LAYER: OpOverload = aten.mkldnn_rnn_layer.default
DERIVATIVE: OpOverload = aten.mkldnn_rnn_layer_backward.default
#: Bytes of a mark.
MARK = 64

_derivatives: dict[bytes, Callable[[dict[str, Any]], Any]] = {}


def register(mark: bytes, derivative: Callable[[dict[str, Any]], Any]) -> None:
    """Register the derivative for workspaces that begin with this mark; it takes DERIVATIVE's operands."""
    if len(mark) != MARK:
        raise ValueError(f"a mark has {MARK} bytes, got {len(mark)}")
    _derivatives[mark] = derivative


def mark_of(workspace: torch.Tensor) -> bytes:
    """Return the mark of a workspace; empty where it is too short for one."""
    storage = workspace.untyped_storage()
    return ctypes.string_at(storage.data_ptr(), MARK) if storage.nbytes() >= MARK else b""


def recorded(*args: Any, **kwargs: Any) -> Any:
    """Decompose the layer where gradients are recorded: into the operator that saves its workspace."""
    return layer()(*args, **kwargs) if torch.is_grad_enabled() else NotImplemented


def derived(*args: Any, **kwargs: Any) -> Any:
    return derivative()(*args, **kwargs)


@functools.cache
def layer() -> OpOverload:
    """Return the layer with its workspace; defined at the first call."""
    return _define("recurrent_layer", LAYER, _run, _fake)


@functools.cache
def derivative() -> OpOverload:
    """Return its derivative; defined at the first call."""
    return _define("recurrent_layer_backward", DERIVATIVE, _run_backward, DERIVATIVE)


def _define(name: str, like: OpOverload, run: Callable[..., Any], fake: Callable[..., Any]) -> OpOverload:
    schema, library = str(like._schema), _library()
    library.define(name + schema[schema.index("(") :])  # type: ignore[no-untyped-call]
    library.impl(name, run, "CPU")  # type: ignore[no-untyped-call]
    library.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]
    made: OpOverload = getattr(getattr(torch.ops, OWN_NAMESPACE), name).default
    return made


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(OWN_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _run(*args: Any) -> Any:
    with torch.enable_grad():
        output, hidden, cell, workspace = LAYER._op_dk(DispatchKey.CPU, *args)
    return output, hidden, cell, workspace[:1]


def _fake(*args: Any) -> Any:
    output, hidden, cell, workspace = LAYER(*args)
    return output, hidden, cell, workspace.new_empty(1)


def _run_backward(*args: Any) -> Any:
    given = arguments(DERIVATIVE, args, {})
    if given["workspace"].untyped_storage().nbytes() <= 1:
        raise RuntimeError(f"{DERIVATIVE}: a part of its workspace came alone")
    other = _derivatives.get(mark_of(given["workspace"]))
    if other is not None:
        with torch.no_grad():
            return other(given)
    return DERIVATIVE._op_dk(DispatchKey.CPU, *args)
