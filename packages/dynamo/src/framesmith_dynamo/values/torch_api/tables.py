"""The functions of torch that are recorded in the graph, fold to a constant, or break, as data.

Names are dotted paths below `torch`; names that this version of torch does not have are skipped.
"""

from __future__ import annotations

from typing import Any, Final

from framesmith_dynamo.breaks import COMPILER_CALL, BreakKind, register_break
from framesmith_dynamo.values.tensors.tensor_tables import (
    PYTHON_CALLBACK,
    STORAGE_ACCESS,
)

GLOBAL_STATE = register_break(
    "torch-global-state",
    what="a process-wide setting of torch is changed",
    why="the change must occur in program order, and later code depends on it",
    hint="set it outside the compiled function",
)
RANDOM_STATE = register_break(
    "torch-random-state",
    what="the random number generator's state is read or set",
    why="the graph draws its random numbers when it runs, later than the trace",
    hint="seed outside the compiled function",
)
TORCH_IO = register_break(
    "torch-io",
    what="tensors are saved, loaded or exchanged with other libraries",
    why="it reads or writes outside the graph",
    hint="call it outside the compiled function",
)
PARAMETER_INIT = register_break(
    "parameter-init",
    what="parameters are made or initialised",
    why="it changes the model, not a value of this call",
    hint="build the model outside the compiled function",
)
HIGHER_ORDER = register_break(
    "higher-order-operator",
    what="a torch function that takes Python functions is called",
    why="its body would have to become a graph of its own",
    hint="call it outside the compiled function",
)
CUSTOM_AUTOGRAD = register_break(
    "autograd-function",
    what="a torch.autograd.Function is applied in a way that a graph does not hold",
    why="it is applied under a transform of torch.func without setup_context, its context leaves its methods, or "
    "backward returns something else than a gradient or None for each argument",
    hint="it runs eagerly between two graphs; see the text of the break",
)
CUDA_STATE = register_break(
    "accelerator-state",
    what="streams, events or memory of an accelerator are handled directly",
    why="the graph orders its own work",
    hint="call it outside the compiled function",
)

#: Namespaces whose C functions and listed Python functions are all tensor operations.
GRAPH_NAMESPACES: Final = (
    "torch",
    "torch.nn.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch._C._nn",
    "torch._C._special",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._VariableFunctions",
)
#: Modules of Python functions of the namespaces above that count as operations.
GRAPH_FUNCTION_MODULES: Final = frozenset(
    {"torch.functional", "torch.nn.functional", "torch._jit_internal", "torch._lowrank"}
)
#: Python functions that are operations although their modules are not listed.
GRAPH_FUNCTIONS: Final = ("torch.nn.functional.scaled_dot_product_attention", "torch.rms_norm", "torch.matrix_rank")

#: The function by which optimizers and gradient clipping group tensors by device and dtype.
GROUPING: Final = "torch._C._group_tensors_by_device_and_dtype"

#: Functions of those modules that are no tensor operations: they are inlined.
NOT_GRAPH: Final = frozenset({"boolean_dispatch", "assert_int_or_pair", "_overload"})


def _rows(groups: dict[BreakKind, str]) -> dict[str, BreakKind]:
    """Return name -> kind, from kind -> names."""
    return {name: kind for kind, names in groups.items() for name in names.split()}


BREAKING: Final[dict[str, BreakKind]] = _rows(
    {
        GLOBAL_STATE: """
            torch.set_default_dtype torch.set_default_device torch.set_default_tensor_type torch.set_num_threads
            torch.set_num_interop_threads torch.set_flush_denormal torch.use_deterministic_algorithms
            torch.set_deterministic_debug_mode torch.set_float32_matmul_precision torch.set_warn_always
            torch.set_printoptions torch.set_anomaly_enabled torch.set_autocast_enabled torch.set_autocast_dtype
            torch.clear_autocast_cache torch.set_autocast_cache_enabled torch.autocast_increment_nesting
            torch.autocast_decrement_nesting
        """,
        RANDOM_STATE: """
            torch.manual_seed torch.seed torch.initial_seed torch.get_rng_state torch.set_rng_state
            torch.random.fork_rng torch.cuda.manual_seed torch.cuda.manual_seed_all torch.random.manual_seed
            torch.cuda.get_rng_state
        """,
        TORCH_IO: """
            torch.save torch.load torch.from_numpy torch.from_dlpack torch.to_dlpack torch.frombuffer
            torch.from_file torch.asarray
        """,
        HIGHER_ORDER: """
            torch.compile torch.jit.script torch.jit.trace
            torch.export.export
        """,
        COMPILER_CALL: """
            torch.compiler.reset torch.compiler.disable torch.compiler.allow_in_graph torch.compiler.set_stance
            torch.compiler.assume_constant_result torch.compiler.substitute_in_graph
            torch.compiler.nested_compile_region
        """,
        STORAGE_ACCESS: """
            torch.is_storage
        """,
        PYTHON_CALLBACK: """
            torch.overrides.handle_torch_function
        """,
        CUDA_STATE: """
            torch.cuda.synchronize torch.cuda.empty_cache torch.cuda.current_stream torch.cuda.set_device
            torch.cuda.stream
        """,
    }
)
#: Modules whose public functions all break.
BREAKING_MODULES: Final[dict[str, BreakKind]] = {
    "torch.nn.init": PARAMETER_INIT,
    "torch.serialization": TORCH_IO,
    "torch.random": RANDOM_STATE,
    "torch.nn.utils.parametrize": PARAMETER_INIT,
    "torch.nn.utils.parametrizations": PARAMETER_INIT,
}

#: Results that do not depend on arguments. `is_compiling()` is true in traced code, as under torch.compile: libraries
#: use it to avoid data-dependent shortcuts, and never to compute something else.
FIXED: Final[dict[str, Any]] = {
    "torch.compiler.is_compiling": True,
    "torch.compiler.is_dynamo_compiling": True,
    "torch._utils.is_compiling": True,
    "torch.compiler.is_exporting": False,
    "torch.compiler.cudagraph_mark_step_begin": None,  # outputs of captured graphs live as long as they are referenced
    "torch.jit.is_tracing": False,
    "torch.jit.is_scripting": False,
    "torch._jit_internal.is_scripting": False,
    "torch._C._get_tracing_state": None,
    "torch._C._is_tracing": False,
    "torch.onnx.is_in_onnx_export": False,
    "torch.cuda.is_current_stream_capturing": False,
    "torch.overrides.has_torch_function": False,
    "torch.overrides.has_torch_function_unary": False,
    "torch.overrides.has_torch_function_variadic": False,
    "torch._C._has_torch_function": False,
    "torch._C._has_torch_function_unary": False,
    "torch._C._has_torch_function_variadic": False,
    "torch._C._log_api_usage_once": None,
    "torch._C._is_torch_function_enabled": True,
    "torch.fx._symbolic_trace.is_fx_tracing": False,
    "torch.fx._symbolic_trace.is_fx_symbolic_tracing": False,
}

#: Functions of constants and of global state that every entry guards: called while tracing.
FOLDED: Final = [
    "torch.is_inference_mode_enabled",
    "torch.get_default_dtype",
    "torch.get_default_device",
    "torch.is_autocast_enabled",
    "torch.get_autocast_dtype",
    "torch.get_autocast_cpu_dtype",
    "torch.get_autocast_gpu_dtype",
    "torch.is_autocast_cpu_enabled",
    "torch.is_autocast_cache_enabled",
    "torch.are_deterministic_algorithms_enabled",
    "torch.is_deterministic_algorithms_warn_only_enabled",
    "torch.promote_types",
    "torch.can_cast",
    "torch.finfo",
    "torch.iinfo",
    "torch.broadcast_shapes",
    "torch.cuda.is_available",
    "torch.cuda.device_count",
    "torch.distributed.is_available",
    "torch.backends.mps.is_available",
    "torch.backends.mkldnn.is_available",
    "torch.backends.mkl.is_available",
    "torch.backends.openmp.is_available",
    "torch.backends.cuda.is_built",
    "torch.amp.is_autocast_available",
    "torch.amp.autocast_mode.is_autocast_available",
    "torch._C._get_default_device",
    "torch._C._is_autocast_available",
    "torch.accelerator.is_available",
    "torch.xpu.is_available",
    "torch._C._get_privateuse1_backend_name",
]
