"""Attributes and methods of tensors, as data.

A name is looked up in order: folded attribute, graph attribute, folded method, breaking method; every other method of
`torch.Tensor` is recorded in the graph, where its operators report data dependence. A function of `torch` is handled as
the method of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith_aten import tensor_methods
from framesmith_dynamo.breaks import DATA_DEPENDENT, BreakKind, register_break

DYNAMIC_OUTPUT_SHAPE = register_break(
    "dynamic-output-shape",
    what="the size of a result depends on a tensor's data",
    why="the rest of the graph needs the size while tracing",
    hint="use an operation with a fixed result size (torch.where with three arguments, topk, padding)",
)
AUTOGRAD_CALL = register_break(
    "autograd-call",
    what="the autograd engine is called in a way that a graph does not support",
    why="hooks, saved tensors and histories from outside the graph belong to the engine, which runs this call",
    hint="register hooks outside the compiled function, or call backward() there",
)
AUTOGRAD_STATE = register_break(
    "tensor-autograd-state",
    what="autograd state of a tensor is read or changed",
    why="grad, grad_fn, hooks and the leaf flags of a tensor belong to the eager engine",
    hint="do this outside the compiled function",
)
HOOKED = register_break(
    "hooked-tensor-changed",
    what="a tensor is changed after a hook was registered on it",
    why="the hook is registered after the graph has run, and would see the gradient of the changed tensor",
    hint="change a clone of the tensor, or register the hook afterwards",
)
STORAGE_ACCESS = register_break(
    "tensor-storage",
    what="a tensor's storage is handled directly",
    why="a traced tensor has no memory yet",
    hint="use tensor operations, or access it outside the compiled function",
)
PYTHON_CALLBACK = register_break(
    "tensor-python-callback",
    what="a Python function is applied to the elements of a tensor",
    why="elementwise Python code has no graph operation",
    hint="write it with tensor operations",
)
ASKED_IN_BODY = register_break(
    "asks-batched-tensor",
    what="a function under a transform, such as torch.vmap, reads a tensor's strides, history or truth",
    why="its body is traced on one example, and a batched tensor may give another answer",
    hint="read it outside of the function; make the tensor contiguous where its layout matters",
)


def _of_this_torch(rows: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the rows whose names tensors of this torch have."""
    return {name: reader for name, reader in rows.items() if hasattr(torch.Tensor, name)}


_HISTORY: dict[str, Callable[..., Any]] = {
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
}
_ATTRIBUTES: dict[str, Callable[..., Any]] = {
    **_HISTORY,
    "shape": lambda t: t.shape,
    "dtype": lambda t: t.dtype,
    "device": lambda t: t.device,
    "layout": lambda t: t.layout,
    "ndim": lambda t: t.dim(),
    "is_cuda": lambda t: t.device.type == "cuda",
    "is_cpu": lambda t: t.device.type == "cpu",
    "is_meta": lambda t: t.device.type == "meta",
    "is_mps": lambda t: t.device.type == "mps",
    "is_xpu": lambda t: t.device.type == "xpu",
    "is_ipu": lambda t: t.device.type == "ipu",
    "is_maia": lambda t: t.device.type == "maia",
    "is_vulkan": lambda t: t.device.type == "vulkan",
    "is_xla": lambda t: t.device.type == "xla",
    "is_mtia": lambda t: t.device.type == "mtia",
    "is_sparse": lambda t: t.is_sparse,
    "is_sparse_csr": lambda t: t.layout == torch.sparse_csr,
    "is_mkldnn": lambda t: t.is_mkldnn,
    "is_quantized": lambda t: t.is_quantized,
    "is_nested": lambda t: t.is_nested,
    "itemsize": lambda t: t.element_size(),
    "nbytes": lambda t: t.element_size() * t.numel(),
    "names": lambda t: (None,) * t.dim(),
}
#: Attributes that are constants given the tensor's type, dtype, shape...: name -> function of the fake.
FOLDED_ATTRIBUTES = _of_this_torch(_ATTRIBUTES)
#: Those about the history of a tensor, with the one that breaks if there is any.
HISTORY = frozenset({*_HISTORY, "grad_fn"})

#: Attributes that are tensors computed from this one.
GRAPH_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})

BREAKING_ATTRIBUTES: dict[str, BreakKind] = {
    "_grad": AUTOGRAD_STATE,
    "grad_dtype": AUTOGRAD_STATE,
    "output_nr": AUTOGRAD_STATE,
    "_version": AUTOGRAD_STATE,
    "_base": AUTOGRAD_STATE,
    "retains_grad": AUTOGRAD_STATE,
    "_backward_hooks": AUTOGRAD_STATE,
    "_post_accumulate_grad_hooks": AUTOGRAD_STATE,
    "_cdata": STORAGE_ACCESS,
    "__cuda_array_interface__": STORAGE_ACCESS,
}

_LAYOUT: dict[str, Callable[..., Any]] = {
    "stride": torch.Tensor.stride,
    "is_contiguous": torch.Tensor.is_contiguous,
    "is_inference": torch.Tensor.is_inference,
}
_METHODS: dict[str, Callable[..., Any]] = {
    **_LAYOUT,
    "size": torch.Tensor.size,
    "dim": torch.Tensor.dim,
    "ndimension": torch.Tensor.dim,
    "numel": torch.Tensor.numel,
    "nelement": torch.Tensor.numel,
    "element_size": torch.Tensor.element_size,
    "is_floating_point": torch.Tensor.is_floating_point,
    "is_complex": torch.Tensor.is_complex,
    "is_signed": torch.Tensor.is_signed,
    "is_conj": torch.Tensor.is_conj,
    "is_neg": torch.Tensor.is_neg,
    "is_same_size": torch.Tensor.is_same_size,
    "get_device": torch.Tensor.get_device,
    "has_names": lambda _: False,
    "dense_dim": torch.Tensor.dim,
}
#: Methods whose result is a constant: name -> function of the fake and the constant arguments.
FOLDED_METHODS = _of_this_torch(_METHODS)
#: Those about the tensor's layout in memory, or the mode in which it was made, with two that have handlers.
LAYOUT_METHODS = frozenset({*_LAYOUT, "storage_offset", "type"})

#: Methods that end the graph: name -> why.
BREAKING_METHODS: dict[str, BreakKind] = {
    name: kind
    for names, kind in (
        (tensor_methods.DATA, DATA_DEPENDENT),
        (tensor_methods.ENGINE, AUTOGRAD_CALL),
        (tensor_methods.AUTOGRAD_STATE, AUTOGRAD_STATE),
        (tensor_methods.STORAGE, STORAGE_ACCESS),
        (tensor_methods.CALLBACK, PYTHON_CALLBACK),
    )
    for name in names
}
