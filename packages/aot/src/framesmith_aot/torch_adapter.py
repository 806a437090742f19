"""Names of torch that may move between releases, as used here: see Note [Needs] in `framesmith_guards.needs`."""

from __future__ import annotations

from typing import Final

from framesmith_aten.torch_adapter import never
from framesmith_aten.torch_adapter import unstable as of_aten
from framesmith_guards.needs import Needs, need
from framesmith_guards.torch_adapter import unstable as of_guards

_HISTORY: Final = "autograd's metadata of views cannot be read"
_LEVELS: Final = "function transforms stay active that a graph of torch.compile enters and that is not compiled"
_UNBACKED: Final = "sizes that depend on data are not compiled"

unstable: Final = Needs(
    "aot",
    (
        need("torch._C.DispatchKeySet", _HISTORY, essential=True),
        need("torch._C.DispatchKey.ADInplaceOrView", _HISTORY, essential=True),
        need("torch._C._ExcludeDispatchKeyGuard", _HISTORY, essential=True),
        need("torch._C._autograd._get_creation_meta", _HISTORY, essential=True),
        need("torch._C._autograd.CreationMeta", _HISTORY, essential=True, members=("DEFAULT", "MULTI_OUTPUT_NODE")),
        need("torch._C._autograd._unsafe_set_version_counter", "graphs that write to inputs fail to compile"),
        need(
            "torch._C._autograd._get_current_graph_task_keep_graph",
            "tensors for second derivatives live as long as their graph",
            instead=lambda: True,
        ),
        need(
            "torch._C._current_graph_task_id",
            "what autograd refuses of second derivatives is asked for node by node, within a pass too",
            instead=lambda: -1,
        ),
        need("torch._C._will_engine_execute_node", "second derivatives of compiled graphs fail"),
        need(
            "torch.autograd._is_checkpoint_valid",
            "torch.autograd.grad is not refused in a reentrant checkpoint's backward pass",
            instead=lambda: True,
        ),
        need(
            "torch._C._functorch.is_functorch_wrapped_tensor",
            "tensors of torch.func transforms are not seen",
            instead=never,
        ),
        need(
            "torch._C._functorch.is_legacy_batchedtensor",
            "`is_grads_batched` runs backward graphs uncompiled",
            instead=never,
        ),
        need("torch._C._functorch.get_dynamic_layer_stack_depth", _LEVELS, instead=lambda: 0),
        need("torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth", _LEVELS, instead=lambda depth: None),
        need("torch.utils._sympy.symbol.SymT", _UNBACKED, members=("UNBACKED_INT", "UNBACKED_FLOAT")),
        need("torch.utils._sympy.symbol.symbol_is_type", _UNBACKED),
        need("torch.fx.experimental.symbolic_shapes.canonicalize_bool_expr", _UNBACKED),
        need("torch._C._nn", "torch.nn operators of exported programs are traced without replacements", instead=None),
        need("torch.nn.Module._call_impl", "nodes of recorded functions do not name their modules", instead=None),
        need("torch._assert_async", "one_hot with a number of classes fails to compile"),
    ),
    of_aten,
    of_guards,
)
