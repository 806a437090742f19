"""Names of torch that may move between releases: see Note [Needs] in `framesmith_guards.needs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.fx import GraphModule

from framesmith_guards.needs import Needs, need
from framesmith_guards.torch_adapter import unstable as of_guards

_LINES: Final = "anomaly detection names no lines of compiled functions"
_NUMBERS: Final = "numbers of dynamic shapes are not computed in graphs"
_FORWARD: Final = "torch.func.jvp and jacfwd in graphs fail to compile"
_GRADIENTS: Final = "torch._dynamo is imported when torch.func.grad is first compiled"


def nothing_known() -> None:
    """Stands for a question about autograd's state."""
    return


def never(asked: object) -> bool:
    """Stands for a question about a kind of tensors, or of operators, that torch no longer has."""
    return False


_MAPPED: Final = "control flow under torch.vmap fails to compile"

unstable: Final = Needs(
    "aten",
    (
        need("torch.fx._lazy_graph_module._LazyGraphModule", "graphs become Python text at once", instead=GraphModule),
        need("torch.utils._python_dispatch._get_current_dispatch_mode_stack", "graphs under dispatch modes fail"),
        need("torch._C._current_autograd_node", _LINES, name="current_autograd_node", instead=nothing_known),
        need("torch.autograd._get_sequence_nr", _LINES, name="next_sequence_nr", instead=nothing_known),
        need("torch._prims_common.make_contiguous_strides_for", _NUMBERS),
        need("torch.utils._sympy.interp.sympy_interp", _NUMBERS),
        need("torch.utils._sympy.reference.PythonReferenceAnalysis", _NUMBERS),
        need(
            "torch._C._AutoDispatchBelowAutograd",
            "operators are tried out with autograd's own view of them",
            instead=torch.no_grad,
        ),
        need(
            "torch._library.custom_ops._maybe_get_opdef",
            "operators of torch.library.custom_op that write where gradients flow break the graph",
            name="definition_of",
            instead=never,
        ),
        need("torch._is_functional_tensor", "tensors of a functionalisation around a call are not seen", instead=never),
        need(
            "torch._C._storage_Use_Count", "launches are not captured, gradients are copied where they could be taken"
        ),
        need("torch._C._functorch.maybe_current_level", "torch.vmap in graphs fails to compile"),
        need("torch._C._functorch.is_gradtrackingtensor", "torch.func of symbolic sizes fails to compile"),
        need("torch._C._functorch.get_unwrapped", "torch.func of symbolic sizes fails to compile"),
        need("torch._C._functorch.maybe_get_level", "torch.vmap in graphs fails to compile"),
        need(
            "torch._C._functorch._unwrap_batched",
            "rules of torch.autograd.Functions for torch.vmap break the graph",
            name="unwrap_batch",
        ),
        need("torch._C._functorch.TransformType", _MAPPED),
        need("torch._C._functorch._add_batch_dim", _MAPPED),
        need("torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter", _MAPPED),
        need("torch._C._ForceDispatchKeyGuard", _FORWARD),
        need("torch._C._dispatch_tls_local_include_set", _FORWARD, name="keys_included"),
        need("torch._C._dispatch_tls_local_exclude_set", _FORWARD, name="keys_excluded"),
        need("torch._functorch.eager_transforms._autograd_grad", _GRADIENTS, instead=None),
        need(
            "torch._functorch.eager_transforms.grad_and_value_impl",
            "torch.func.grad breaks the graph",
            name="grad_and_value",
        ),
        need(
            "torch._functorch.eager_transforms._vjp_with_argnums",
            "torch.func.vjp and jacrev break the graph",
            name="vjp_with_argnums",
        ),
        need(
            "torch._functorch.eager_transforms._jvp_with_argnums",
            "torch.func.jvp and jacfwd break the graph",
            name="jvp_with_argnums",
        ),
        need(
            "torch._functorch.vmap.doesnt_support_saved_tensors_hooks",
            _GRADIENTS,
            name="without_saved_hooks",
            instead=None,
        ),
        need(
            "torch._library.simple_registry.singleton", "fakes of operators are not looked up", name="custom_operators"
        ),
        need("torch.nn.modules._functions.BackwardHookFunction", "modules with backward hooks break the graph"),
        need("torch._C._DisableAutocast", "compiled functions would cast twice under autocast", essential=True),
    ),
    of_guards,
)

if TYPE_CHECKING:
    from torch.utils._sympy.reference import PythonReferenceAnalysis as PythonReferenceAnalysis
else:
    PythonReferenceAnalysis = unstable.PythonReferenceAnalysis
