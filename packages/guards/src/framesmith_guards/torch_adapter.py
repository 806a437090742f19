"""Names of torch that may move between releases: those used here, and those that several packages above share.

See Note [Needs] in `needs.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from framesmith_guards.needs import Needs, Operators, need


class NeverRaised(Exception):
    """Stands for an exception that this release of torch does not have."""


_ASKED_OF_CALLS: Final = "the state of torch that a compiled function depends on cannot be checked at its calls"
_FAKES: Final = "there is nothing to trace programs with"
_SYMBOLS: Final = "dynamic shapes are not compiled"
_PROBES: Final = "tensors are checked in Python"
_ONE_MORE_CALL: Final = "whether a transform of torch.func is active is read by a call of Python"
_LIGHT: Final = "torch._dynamo is imported when the first function is compiled"

unstable: Final = Needs(
    "guards",
    (
        # State that guards read
        need("torch._C._len_torch_function_stack", _ASKED_OF_CALLS, essential=True),
        need("torch._C._get_function_stack_at", _ASKED_OF_CALLS, essential=True),
        need("torch._C._is_torch_function_enabled", _ASKED_OF_CALLS, essential=True),
        need("torch._C._is_torch_function_all_disabled", _ASKED_OF_CALLS, essential=True),
        need("torch._C._len_torch_dispatch_stack", _ASKED_OF_CALLS, essential=True),
        need("torch._C._get_dispatch_stack_at", _ASKED_OF_CALLS, essential=True),
        need("torch._C._get_tracing_state", _ASKED_OF_CALLS, essential=True),
        need("torch._C._functorch.peek_interpreter_stack", _ASKED_OF_CALLS, essential=True),
        need("torch._C._functorch._grad_increment_nesting", _ONE_MORE_CALL, instead=None),
        need("torch._C._functorch._grad_decrement_nesting", _ONE_MORE_CALL, instead=None),
        need("torch._C._functorch.get_interpreter_stack", "calls inside torch.func transforms are not compiled"),
        need("torch._C._autograd._saved_tensors_hooks_is_enabled", _ASKED_OF_CALLS, essential=True),
        need("torch._C._autograd._top_saved_tensors_default_hooks", _ASKED_OF_CALLS, essential=True),
        need("torch.utils._device.DeviceContext", _ASKED_OF_CALLS, essential=True),
        need(
            "torch._C._get_fp32_precision_getter",
            "whether CUDA rounds float32 matmuls is read from torch.backends.cuda.matmul.allow_tf32",
            instead=None,
        ),
        need(
            "torch._C._dynamo.guards.GlobalStateGuard",
            "torch's state is compared in Python, part by part",
            members=("check",),
            instead=None,
        ),
        # Tensors
        need("torch._C.DisableTorchFunction", "tensors of subclasses cannot be looked at", essential=True),
        need("torch._C._dispatch_keys", "the kind of a tensor is unknown", essential=True),
        need("torch._C.DispatchKeySet.from_raw_repr", "a guard's dispatch keys are described as a number", instead=int),
        need("torch._C._dispatch_key_parse", "whether a mode is active is read in two calls", instead=None),
        need(
            "torch._C._dispatch_tls_is_dispatch_key_included", "whether a mode is active is read in two calls",
            instead=None,
        ),
        need(
            "torch._C._dispatch_tls_set_dispatch_key_included", "whether a mode is active is read in two calls",
            instead=None,
        ),
        need("torch._neg_view", _PROBES),
        need("torch._conj", _PROBES),
        need("torch.utils._python_dispatch._disable_current_modes", "compiling inside a dispatch mode fails"),
        need("torch.utils._python_dispatch.is_traceable_wrapper_subclass", _FAKES, essential=True),
        need("torch.utils._mode_utils.no_dispatch", _FAKES, essential=True),
        need("torch.utils._pytree.tree_flatten", _FAKES, essential=True),
        need("torch.utils._pytree.tree_leaves", _FAKES, essential=True),
        need("torch.utils._pytree.tree_unflatten", _FAKES, essential=True),
        need("torch._C._set_grad_enabled", "modes of gradients cannot be put back", essential=True),
        need("torch._C._is_any_autocast_enabled", _ASKED_OF_CALLS, essential=True),
        need("torch.utils._python_dispatch.TorchDispatchMode", _FAKES, essential=True, members=("__torch_dispatch__",)),
        need("torch.amp.autocast_mode._enter_autocast", "autocast inside compiled functions fails"),
        need("torch.amp.autocast_mode._exit_autocast", "autocast inside compiled functions fails"),
        need("torch._C.TensorBase", "methods of tensors are called as operators"),
        # Operators
        need("torch._C._dispatch_has_kernel", _FAKES, essential=True),
        need("torch._C._dispatch_has_kernel_for_dispatch_key", _FAKES, essential=True),
        need("torch._ops.OpOverload", _FAKES, essential=True, members=("redispatch",)),
        need("torch._ops.OpOverloadPacket", _FAKES, essential=True),
        need("torch._C.DispatchKey", _FAKES, essential=True, members=("Autograd", "CompositeImplicitAutograd")),
        # Fake tensors
        need("torch._subclasses.fake_tensor.FakeTensor", _FAKES, essential=True),
        need(
            "torch._subclasses.fake_tensor.FakeTensorMode", _FAKES, essential=True,
            members=("__torch_dispatch__", "_dispatch_impl", "from_tensor"),
        ),
        need("torch._subclasses.fake_tensor.FakeTensorConverter", _FAKES, essential=True, members=("_get_memo",)),
        need("torch._subclasses.meta_utils", _FAKES, essential=True, members=("safe_is_leaf", "assert_metadata_eq")),
        need("torch._subclasses.meta_utils.MetaConverter", _FAKES, essential=True, members=("meta_tensor",)),
        need("torch._subclasses.meta_utils.MetaTensorDescriber", _FAKES, essential=True, members=("describe_tensor",)),
        need(
            "torch._subclasses.fake_tensor.DynamicOutputShapeException",
            "a result whose size depends on data is reported as a failure of the operator", instead=NeverRaised,
        ),
        need(
            "torch._subclasses.fake_tensor.DataDependentOutputException",
            "a number that depends on data is reported as a failure of the operator", instead=NeverRaised,
        ),
        need(
            "torch._subclasses.fake_tensor.UnsupportedFakeTensorException",
            "tensors that fakes cannot stand for are reported as failures", instead=NeverRaised,
        ),
        need(
            "torch._subclasses.fake_tensor.UnsupportedOperatorException",
            "operators without a rule for fakes are reported as failures", instead=NeverRaised,
        ),
        need(
            "torch._C._ensureCUDADeviceGuardSet",
            "compiling in threads may end the process where CUDA is built in and there is no GPU",
            instead=lambda: None, name="ensure_device_guard",
        ),
        need("torch._C._DisableTorchDispatch", "each operator's fake result is computed by torch"),
        need("torch._C._get_default_device", "each operator's fake result is computed by torch"),
        need("torch._compile._disable_dynamo", _LIGHT, instead=None),
        need("torch._decomp.global_decomposition_table", _LIGHT, instead={}),
        # Rules of operators
        need("torch._decomp.decomposition_table", "more operators are compiled whole", instead={}),
        need("torch._decomp.meta_table", "more operators are compiled whole", instead={}),
        need("torch._decomp.decompositions.Reduction", "losses of no elements fail", members=("MEAN", "SUM")),
        need("torch._dispatch.python.enable_python_dispatcher", _SYMBOLS),
        need(
            "torch.library._impls", "what Python kernels of libraries do is not seen in traces", instead=frozenset(),
            name="library_kernels",
        ),
        need(
            "torch._C._dispatch_get_registrations_for_dispatch_key",
            "operators that read memory on the host may end the process", instead=lambda key: (),
        ),
        need("torch._C._DisablePythonDispatcher", _SYMBOLS),
        need("torch._prims_common.infer_size", _SYMBOLS),
        need("torch._prims_common.suggest_memory_format", _SYMBOLS),
        need("torch._prims_common.is_contiguous_or_false", _SYMBOLS),
        need("torch._check", _SYMBOLS),
        # Symbols
        need("torch._guards.Source", _SYMBOLS),
        need("torch._guards.GuardSource", _SYMBOLS, members=("LOCAL", "GLOBAL", "SHAPE_ENV", "EPHEMERAL")),
        need("torch.fx.experimental.symbolic_shapes", _SYMBOLS),
        need(
            "torch.fx.experimental.symbolic_shapes.ShapeEnv", _SYMBOLS,
            members=(
                "evaluate_sym_node", "create_unspecified_symbol", "create_symintnode", "create_symfloatnode",
                "_create_symbolic_sizes_strides_storage_offset", "_update_var_to_range", "_maybe_evaluate_static",
                "suppress_guards", "replace",
            ),
        ),
        need("torch.fx.experimental.symbolic_shapes.SLoc", _SYMBOLS),
        need("torch.fx.experimental.symbolic_shapes.DimDynamic", _SYMBOLS),
        need("torch.fx.experimental.symbolic_shapes.StatelessSymbolicContext", _SYMBOLS),
        need("torch.fx.experimental.symbolic_shapes.free_unbacked_symbols", _SYMBOLS),
        need(
            "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
            "conditions on data are reported as failures of the operator", instead=NeverRaised,
        ),
        need("torch.fx.experimental.symbolic_shapes.statically_known_true", _SYMBOLS),
        need("torch.fx.experimental.sym_node.SymNode", _SYMBOLS, members=("expr", "maybe_as_int", "wrap_int")),
        need(
            "torch.utils._sympy.functions", "guards with torch's sympy functions are not written to files",
            instead=None, name="sympy_functions",
        ),
        need("torch.utils._sympy.numbers.int_oo", _SYMBOLS),
        need("torch.utils._sympy.value_ranges.ValueRanges", _SYMBOLS),
        need("torch.utils._sympy.value_ranges.bound_sympy", _SYMBOLS),
    ),
)  # fmt: skip

if TYPE_CHECKING:
    import torch
    from torch import _guards
    from torch._C import DispatchKey as DispatchKey
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._subclasses import meta_utils as meta_utils
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorConverter as FakeTensorConverter
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.meta_utils import MetaConverter as MetaConverter
    from torch._subclasses.meta_utils import MetaTensorDescriber as MetaTensorDescriber
    from torch.fx.experimental import symbolic_shapes as symbolic_shapes
    from torch.fx.experimental.sym_node import SymNode as SymNode
    from torch.fx.experimental.symbolic_shapes import DimDynamic as DimDynamic
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode as GuardOnDataDependentSymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
    from torch.fx.experimental.symbolic_shapes import StatelessSymbolicContext as StatelessSymbolicContext
    from torch.utils._mode_utils import no_dispatch as no_dispatch
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges

    TorchGuardSource = _guards.GuardSource
    TorchSource = _guards.Source
    aten = torch.ops.aten
else:
    DispatchKey = unstable.DispatchKey
    TorchGuardSource, TorchSource = unstable.GuardSource, unstable.Source
    OpOverload, OpOverloadPacket = unstable.OpOverload, unstable.OpOverloadPacket
    FakeTensor, FakeTensorMode = unstable.FakeTensor, unstable.FakeTensorMode
    FakeTensorConverter, meta_utils = unstable.FakeTensorConverter, unstable.meta_utils
    MetaConverter, MetaTensorDescriber = unstable.MetaConverter, unstable.MetaTensorDescriber
    DataDependentOutputException = unstable.DataDependentOutputException
    DynamicOutputShapeException = unstable.DynamicOutputShapeException
    GuardOnDataDependentSymNode = unstable.GuardOnDataDependentSymNode
    symbolic_shapes, ShapeEnv, SymNode = unstable.symbolic_shapes, unstable.ShapeEnv, unstable.SymNode
    DimDynamic, StatelessSymbolicContext = unstable.DimDynamic, unstable.StatelessSymbolicContext
    TorchDispatchMode = unstable.TorchDispatchMode
    #: Operators that tables and rules name.
    aten = Operators("aten")
    no_dispatch, ValueRanges = unstable.no_dispatch, unstable.ValueRanges
