"""Runs a torch-level graph node by node, telling the tracer which node it is at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from framesmith_aot.errors import AotUnsupported
from framesmith_aot.torch_adapter import unstable
from framesmith_aot.trace import derivatives, functional, numbers, optimizers, recurrent
from framesmith_aot.trace.lazy_bits import Bits
from framesmith_aten import tensor_methods
from framesmith_aten.assumptions import is_assertion
from framesmith_aten.checks.ignored_warnings import without_warnings
from framesmith_aten.checks.overlaps import Overlaps
from framesmith_aten.graphs.numbers import FUNCTIONS
from framesmith_aten.graphs.transforms import BodyInterpreter
from framesmith_aten.layouts import share_storage, storage_id
from framesmith_aten.meta import EXAMPLE
from framesmith_aten.operators import op_name
from framesmith_aten.symbolic import is_symbolic
from framesmith_aten.tracing.functional_forms import run_functionally, writing_operator
from framesmith_aten.tracing.tracer import GraphTracer
from framesmith_guards.torch_adapter import OpOverload, aten

#: Functions that change many tensors at once: where they are functionalised, autograd does not see it, nor counts it.
MANY_CHANGED = frozenset(
    name for name in dir(torch) if name.startswith(("_foreach_", "_fused_")) and name.endswith("_")
)

#: Calls that the traced form cannot express, and why.
REFUSED_METHODS: tuple[tuple[frozenset[str], str], ...] = (
    (tensor_methods.AUTOGRAD_STATE, "what it changes of the tensor object cannot be replayed after the graph"),
    (tensor_methods.STORAGE, "the tensor's memory is handled directly"),
    (tensor_methods.ENGINE, "it writes to `.grad` of tensors outside the graph"),
    (tensor_methods.DATA, "its value is not known while compiling"),
    (tensor_methods.CALLBACK, "it calls a Python function for each element"),
)


@dataclass(frozen=True)
class Ran:
    """A run of a graph: its flat outputs, the names of the nodes that made them, and `writers`.

    Those are the nodes that wrote to memory last and were recorded, by `framesmith_aten.layouts.storage_id`.
    """

    outputs: list[Any]
    makers: list[str]
    writers: Mapping[int, str]


@contextmanager
def _transforms_left() -> Iterator[None]:
    """Leave the function transforms that a graph (one of torch.compile's) has entered when it fails within."""
    depth = unstable.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        unstable.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        raise


@_transforms_left()
def run_graph(gm: fx.GraphModule, args: Sequence[Any], attributes: dict[str, Any], tracer: GraphTracer) -> Ran:
    """Runs `gm` on `args`; `attributes` gives the values of its `get_attr` nodes."""
    env: dict[fx.Node, Any] = {}
    inputs = iter(args)
    writers: dict[int, str] = {}
    overlaps, facts = Overlaps(tracer.parts), numbers.Facts(tracer, gm.graph)
    for value in [*args, *attributes.values()]:
        overlaps.note(value)
    bits = Bits()
    for value in _wrappers((args, attributes)):
        bits.note(value)
    for node in gm.graph.nodes:
        tracer.source = node
        if node.op == "placeholder":
            env[node] = next(inputs)
        elif node.op == "get_attr":
            held = attributes[node.target]
            env[node] = _Body(held).run if isinstance(held, fx.GraphModule) else held
        elif node.op == "output":
            tracer.source = None
            outputs = _flat_outputs(fx.node.map_arg(node.args[0], env.__getitem__))
            makers = {id(value): maker.name for maker, value in reversed(env.items())}
            return Ran(outputs, [makers.get(id(value), "") for value in outputs], writers)
        else:
            before = tracer.undone_by_sums
            env[node] = _call(node, env, overlaps, writers, tracer, facts)
            for value in _wrappers(env[node]):
                bits.note(value)
            bits.restore()
            overlaps.note(env[node])
            for value in _wrappers(env[node]) if tracer.undone_by_sums > before else ():
                overlaps.note_undone_by_sums(value)
            facts.check(node, env)
    raise AotUnsupported("no-output", "a graph without an output node", "there is nothing to return")


class _Body(BodyInterpreter):
    """A graph that a node holds, run as it was captured: functorch, above the tracer, sees what it saw then."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("call_function", "call_method"):
            _refuse_method(tensor_methods.method_of(n.target), *self.fetch_args_kwargs_from_env(n))
        return super().run_node(n)


def _call(
    node: fx.Node,
    env: dict[fx.Node, Any],
    overlaps: Overlaps,
    writers: dict[int, str],
    tracer: GraphTracer,
    facts: numbers.Facts,
) -> Any:
    args = fx.node.map_arg(node.args, lambda operand: numbers.as_known(env[operand]))
    kwargs = fx.node.map_arg(node.kwargs, lambda operand: numbers.as_known(env[operand]))
    if node.target is unstable.check:
        facts.note_check(node, args)
    facts.note_asserted(node, env)
    if is_assertion(node) and facts.has_checked(args[0]):
        return None
    if node.target in FUNCTIONS and any(map(is_symbolic, args)) and not any(map(torch.is_tensor, args)):
        return numbers.call(tracer, node, args, kwargs)
    before = [
        (value, functional.mutation_count(value), value._version, value.shape, value.stride())
        for value in _wrappers((args, kwargs))
    ]
    with without_warnings():  # whoever made the graph was told
        result = _run(node, args, kwargs)
    numbers.note_result(tracer, node, result)
    result = _in_own_memory_as_captured(node, env, result)
    for value, count, version, size, stride in before:
        if functional.mutation_count(value) != count:
            if op_name(node.target) in MANY_CHANGED and value._version == version:
                torch.autograd.graph.increment_version(value)
            overlaps.check(value, str(node.target))
            functional.keep_layout(value, size, stride)
            if torch.is_grad_enabled() and value.requires_grad:
                writers[storage_id(value)] = node.name
    return result


def _in_own_memory_as_captured(node: fx.Node, env: Mapping[fx.Node, Any], result: Any) -> Any:
    """The result as memory of its own where it was so when the graph was captured: `contiguous` of what was not.

    An operand that was written to in place may be laid out otherwise here: eager's memory has gaps, a value has none.
    """
    example = EXAMPLE.get(node) if node.meta else None
    if not isinstance(example, torch.Tensor) or not functional.is_functional(result):
        return result
    for source in node.all_input_nodes:
        operand, before = env[source], EXAMPLE.get(source)
        aliased = functional.is_functional(operand) and storage_id(operand) == storage_id(result)
        if aliased and isinstance(before, torch.Tensor) and not share_storage(before, example):
            return result.clone()
    return result


def _run(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if node.op == "call_module":
        raise AotUnsupported("module-call", f"a call of submodule {node.target!r}", "the graph must be flat")
    _refuse_method(tensor_methods.method_of(node.target), args, kwargs)
    if tensor_methods.concerns_pinning(node.target, kwargs):
        what = f"pinned memory ({op_name(node.target)})"
        raise AotUnsupported("pinned-memory", what, "a graph makes tensors in memory of its own")
    if node.op == "call_method":
        method = getattr(torch.Tensor, str(node.target), None)
        if method in REPLACEMENTS:
            return REPLACEMENTS[method](*args, **_in_torchs_names(kwargs))
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    many = op_name(node.target) in MANY_CHANGED and torch.is_grad_enabled()
    if many and any(one.requires_grad for one in _wrappers((args, kwargs))):
        what = f"torch.{op_name(node.target)} of tensors that require gradients"
        raise AotUnsupported("unrecorded-change", what, "its trace would be without their new history")
    op = writing_operator(node.target)
    if op is not None:
        return run_functionally(op, args, kwargs)
    return called(node.target, args, kwargs)


def called(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The call of a function, or of what it is run through instead."""
    instead = _replacement(target)
    if instead is None:
        return target(*args, **kwargs)
    if isinstance(target, OpOverload):
        args, kwargs = _by_position(target, args, kwargs)
    return instead(*args, **_in_torchs_names(kwargs))


def _replacement(target: Any) -> Callable[..., Any] | None:
    """What a call is run through instead, or None.

    Operators that a program calls itself (an exported one) are run through what torch's functions of their names are,
    but for those that write to tensors given by name: these are called otherwise there.
    """
    if target in REPLACEMENTS:
        return REPLACEMENTS[target]
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    if any(argument.is_out for argument in target._schema.arguments):
        return None
    name = op_name(target)
    return REPLACEMENTS.get(getattr(torch, name, None) or getattr(unstable.nn, name, None))


def _by_position(
    target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments with those given by the schema's names at their positions, which Python's functions share."""
    found, rest = [*args], {**kwargs}
    for argument in target._schema.arguments[len(args) :]:
        if argument.kwarg_only or argument.name not in rest:
            break
        found.append(rest.pop(argument.name))
    return found, rest


#: Numpy's names of arguments, which torch's own functions in C take too.
NUMPYS_NAMES = {"axis": "dim", "keepdims": "keepdim", "a": "input", "x": "input", "x1": "input", "x2": "other"}


def _in_torchs_names(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {NUMPYS_NAMES.get(name, name): value for name, value in kwargs.items()}


def _wrappers(value: Any) -> Iterator[torch.Tensor]:
    if functional.is_functional(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _wrappers(item)
    elif isinstance(value, dict):
        yield from _wrappers(tuple(value.values()))


def _refuse_method(name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for names, reason in REFUSED_METHODS:
        if name in names and not _changes_nothing(name, args, kwargs):
            raise AotUnsupported("tensor-method", f"Tensor.{name}", reason)


def _changes_nothing(name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    wanted = kwargs.get("requires_grad", args[1] if len(args) > 1 else True)
    return name == "requires_grad_" and bool(args[0].requires_grad) == bool(wanted)


def _flat_outputs(outputs: Any) -> list[Any]:
    if not isinstance(outputs, (tuple, list)):
        raise AotUnsupported("output-form", f"a graph output of type {type(outputs).__name__}", "a tuple is expected")
    for item in outputs:
        if isinstance(item, (tuple, list, dict)):
            raise AotUnsupported("output-form", "a nested graph output", "a flat tuple of tensors is expected")
    return list(outputs)


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """`torch.batch_norm` through the operators whose schemas declare the running statistics' update."""
    if input.numel() == 0:  # they refuse that
        scaled = input.clone() if weight is None else input.clone() * weight[0]  # the input itself is not kept
        return scaled if bias is None else scaled + bias[0]
    # Of lazy negatives torch's operator, whose schema declares no update, is given copies.
    running_mean = None if running_mean is None else running_mean.resolve_neg()
    running_var = None if running_var is None else running_var.resolve_neg()
    stats = running_mean is not None and running_var is not None
    out: torch.Tensor
    if not training and stats:
        out = aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )[0]
    elif stats:
        out = aten._native_batch_norm_legit.default(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    else:
        out = aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)[0]
    return out


def _functional_batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if training:
        F._verify_batch_size(list(input.size()))  # type: ignore[attr-defined]
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def _tolist(tensor: torch.Tensor) -> Any:
    """`Tensor.tolist`, of a traced tensor number by number."""
    if not functional.is_functional(tensor):
        return tensor.tolist()
    return [_tolist(part) for part in tensor.unbind()] if tensor.dim() else tensor.item()


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`torch.one_hot` with its check as an operator: its own reads the data. A wrong class raises some RuntimeError."""
    if num_classes <= 0:  # counted, or refused
        return torch.nn.functional.one_hot(tensor, num_classes)
    unstable.assert_async(((tensor >= 0) & (tensor < num_classes)).all(), "Class values must be below num_classes.")
    classes = torch.arange(num_classes, device=tensor.device)
    return (tensor.contiguous().unsqueeze(-1) == classes).to(torch.int64)


def _bernoulli(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.bernoulli`: what it is given to write to is filled in the order of that memory."""
    out = kwargs.get("out")
    if out is None or out.shape != input.shape:
        drawn: torch.Tensor = aten.bernoulli(input, *args, **kwargs)  # with a tensor of chances, too
        return drawn
    return out.bernoulli_(input, generator=kwargs.get("generator"))  # type: ignore[no-any-return]


def _slice_scatter(
    input: torch.Tensor, src: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    """`torch.slice_scatter`, whose fake kernel does not say that the part is as long as what is written to it."""
    part = aten.slice.Tensor(input, dim, start, end, step)
    if part.dim() == src.dim():
        unstable.check(part.shape[dim] == src.shape[dim])
    return torch.slice_scatter(input, src, dim, start, end, step)


def _max_pool1d(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.max_pool1d`: without gradients it has, on the CPU, a kernel, whose results are contiguous and no views."""
    out = torch.max_pool1d(input, *args, **kwargs)
    recorded = torch.is_grad_enabled() and input.requires_grad
    return out if recorded or not input.is_cpu else aten._unsafe_view(out.contiguous(), out.shape)


def _functional_max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if return_indices:
        return F.max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)
    return _max_pool1d(input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode)


#: Whether torch has a kernel for an operator and a dispatch key.
_has_kernel: Callable[[str, str], bool] = unstable.dispatch_has_kernel_for_dispatch_key


def _not_half(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """`torch.rms_norm`: on CUDA as pointwise operators and a mean, in the type in which eager mode's kernel computes.

    Torch's own takes sizes for that kernel out of memory: symbols came as numbers that are none.
    """
    sizes = tuple(normalized_shape)
    if input.is_cuda and torch.is_autocast_enabled("cuda") and _has_kernel("aten::rms_norm", "AutocastCUDA"):
        # Autocast computes it in float32: since torch 2.13.
        input, weight = _not_half(input), None if weight is None else _not_half(weight)
    weight_fits = weight is None or (weight.dtype == input.dtype and tuple(weight.shape) == sizes)
    fits = 0 < len(sizes) <= input.dim() and tuple(input.shape[input.dim() - len(sizes) :]) == sizes
    if not (input.is_cuda and input.is_floating_point() and fits and weight_fits):
        return torch.rms_norm(input, normalized_shape, weight, eps)
    return normed_by_rms(input, len(sizes), weight, eps)


def normed_by_rms(input: torch.Tensor, count: int, weight: torch.Tensor | None, eps: float | None) -> torch.Tensor:
    """The same along the last `count` dimensions, rounded to the input's type once, at the end."""
    dense = input.contiguous(memory_format=unstable.suggest_memory_format(input))
    wide = dense.to(torch.promote_types(input.dtype, torch.float32))
    mean = wide.square().mean(tuple(range(-count, 0)), keepdim=True)
    normed = wide * torch.rsqrt(mean + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (normed if weight is None else normed * weight).to(input.dtype)


#: Torch calls, and methods of tensors, run through another function of the same meaning.
REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **recurrent.REPLACEMENTS,
    **optimizers.REPLACEMENTS,
    torch.batch_norm: _batch_norm,
    F.batch_norm: _functional_batch_norm,
    F.one_hot: _one_hot,
    **dict.fromkeys((torch.rms_norm, F.rms_norm), _rms_norm),
    torch.max_pool1d: _max_pool1d,
    F.max_pool1d: _functional_max_pool1d,
    torch.Tensor.tolist: _tolist,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), derivatives.masked_select),
    **dict.fromkeys((torch.bernoulli, aten.bernoulli.out), _bernoulli),
    **dict.fromkeys((torch.slice_scatter, torch.Tensor.slice_scatter), _slice_scatter),
    **dict.fromkeys((torch.prod, torch.Tensor.prod), derivatives.prod),
    **dict.fromkeys((torch.cumsum, torch.Tensor.cumsum), derivatives.cumsum),
    **dict.fromkeys((torch.cumprod, torch.Tensor.cumprod), derivatives.cumprod),
    **dict.fromkeys((torch.max, torch.Tensor.max), derivatives.one_of_all(torch.max)),
    **dict.fromkeys((torch.min, torch.Tensor.min), derivatives.one_of_all(torch.min)),
    **dict.fromkeys((torch.median, torch.Tensor.median), derivatives.one_of_all(torch.median)),
    **dict.fromkeys((torch.nanmedian, torch.Tensor.nanmedian), derivatives.one_of_all(torch.nanmedian)),
}
