"""Unstable names of torch that this package uses: see Note [Needs] in `framesmith_guards.needs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from framesmith_aten.torch_adapter import unstable as of_aten
from framesmith_guards.needs import Needs, need
from framesmith_guards.torch_adapter import unstable as of_guards

_AROUND: Final = "torch's global state cannot be read"

unstable: Final = Needs(
    "dynamo",
    (
        # torch's C module of its frame hook
        need(
            "torch._C._dynamo.eval_frame", "torch.compile around a compiled function compiles its parts", instead=None
        ),
        need("torch._C._dispatch_tls_is_dispatch_key_excluded", _AROUND, essential=True),
        need("torch._C.DispatchKey.PythonTLSSnapshot", _AROUND, essential=True),
        need("torch._C._VariableFunctions", "torch's functions break the graph", essential=True),
        # In Python it is a classmethod's function, in C the descriptor itself.
        need(
            "torch.autograd.function.Function.__dict__.apply.__func__",
            "torch.autograd.Functions break the graph",
            "torch.autograd.function.Function.__dict__.apply",
            name="apply",
        ),
        need(
            "torch.nn.modules.module",
            "hooks of modules are ignored",
            essential=True,
            name="module_file",
            members=(
                "_global_backward_pre_hooks",
                "_global_backward_hooks",
                "_global_forward_hooks",
                "_global_forward_pre_hooks",
            ),
        ),
        need("torch.nn.Module", "modules are not called in graphs", essential=True, members=("_call_impl",)),
        need("torch.autograd.forward_ad._current_level", _AROUND, essential=True),
        need(
            "torch._higher_order_ops.flex_attention.flex_attention",
            "flex attention called as an operator breaks the graph",
            "torch._higher_order_ops.flex_attention",  # which hides the module of its name
            members=("__call__",),
        ),
        need("torch._higher_order_ops.while_loop", "torch's while_loop breaks the graph"),
        need("torch._higher_order_ops.while_loop_stack_output", "a loop that gives stacks breaks the graph"),
        need("torch._higher_order_ops.invoke_quant_packed", "torch's invoke_quant breaks the graph"),
        need(
            "torch._higher_order_ops.register_hook.register_hook_op",
            "hooks registered by torch's operator break the graph",
        ),
        need("torch._higher_order_ops.scan", "scans break the graph"),
        need("torch._higher_order_ops.associative_scan", "associative scans break the graph"),
        need("torch._higher_order_ops.map", "torch's map breaks the graph"),
        need(
            "torch._library.custom_ops.CustomOpDef",
            "calls of operators made by torch.library.custom_op break the graph",
        ),
        need("torch._ops.HigherOrderOperator", "higher-order operators break the graph"),
        need("torch.autograd.grad_mode._enter_inference_mode", "inference mode inside compiled functions fails"),
        need("torch.autograd.grad_mode._exit_inference_mode", "inference mode inside compiled functions fails"),
        need(
            "torch._functorch.autograd_function.VmapInfo",
            "rules of torch.autograd.Functions for torch.vmap break the graph",
        ),
        need("torch._functorch.vmap._flat_vmap", "torch.vmap breaks the graph", name="flat_vmap"),
        need("torch._functorch.vmap._unwrap_batched", "torch.vmap breaks the graph", name="unwrap_batched"),
        need("torch._functorch.vmap._maybe_remove_batch_dim", "torch.vmap breaks the graph", name="remove_batch_dim"),
        need("torch._functorch.vmap._get_name", "torch.vmap breaks the graph", name="name_of_mapped"),
        need(
            "torch._functorch.apis._wraps_without_dynamo_attrs",
            "torch.func.jacrev and jacfwd called in a graph break it",
            name="wraps_without_dynamo",
        ),
        need(
            "torch._functorch.apis._DYNAMO_WRAPPER_ATTRS",
            "functions under torch.func have attributes of torch.compile",
            name="dynamo_attributes",
            instead=(),
        ),
        need("torch._functorch.vmap.lazy_load_decompositions", "torch.vmap breaks the graph"),
        need("torch._debug_has_internal_overlap", "the writes of a failed graph are not rolled back"),
        need("torch._safe_softmax", "flex attention fails to compile"),
        need("torch.nn.attention.flex_attention._LARGE_SPARSE_BLOCK_SIZE", "flex attention fails to compile"),
        need("torch.nn.functional._verify_spatial_size", "instance_norm fails to compile"),
        need(
            "torch.fx.experimental.symbolic_shapes.expect_true", "torch._check of what depends on data fails to compile"
        ),
    ),
    of_aten,
    of_guards,
)

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef as CustomOpDef
    from torch._ops import HigherOrderOperator as HigherOrderOperator
else:
    CustomOpDef, HigherOrderOperator = unstable.CustomOpDef, unstable.HigherOrderOperator
