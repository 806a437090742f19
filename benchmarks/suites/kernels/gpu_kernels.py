"""The kernels that the cuda backend makes of the registries' kernels and models and of torch's operator database.

No GPU is needed: programs run on CPU tensors, and each graph is rendered as it would be for a device.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_unflatten

import framesmith
from benchmarks.kernel_cases import CASES, Case
from benchmarks.models import zoo
from benchmarks.models.selection import Selection, title
from benchmarks.suites.kernels import kernels
from framesmith_aot import AotUnsupported, compile_graph
from framesmith_aten.contract import ROLES, BoxedFn, OnError, Role
from framesmith_backends import CudaBackend, find_backend
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.lower.graph import why_not_functional
from framesmith_backends.render.triton.kernel import TritonKernel
from framesmith_backends.rewrite.channels_last import channels_last, with_channels_last
from framesmith_backends.rewrite.convolution_layouts import ON_CUDA, in_groups, input_and_result

#: Samples of each operator of the database, and of each of their types.
SAMPLES = 4


@dataclass(frozen=True)
class Made:
    """A kernel, its Triton form, and the case that it was first made for; of several in one form no single one."""

    case: str
    kernel: Kernel | None
    triton: TritonKernel


@dataclass
class Collector:
    """A backend that renders what `cuda` would run, keeps each kernel once, and computes on the CPU."""

    name: str = "collector"
    devices: tuple[str, ...] = ("cpu",)
    roles: tuple[Role, ...] = ROLES
    options: Mapping[str, object] = field(default_factory=dict)
    case: str = ""
    made: dict[tuple[str, int], Made] = field(default_factory=dict)

    def lowers(self, op: OpOverload) -> bool:
        return CUDA.lowers(op)

    def why_not(self, gm: fx.GraphModule) -> str | None:
        return None

    def transform_step(
        self, graph: fx.Graph, options: Mapping[str, object] | None = None, on_error: OnError | None = None
    ) -> fx.Graph | None:
        return with_channels_last(graph, AS_CUDNN)

    def compile(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        role: Role = "inference",
        options: Mapping[str, object] | None = None,
        on_error: OnError | None = None,
    ) -> BoxedFn:
        if why_not_functional(gm) is None:
            stages = CUDA.explain(channels_last(gm, AS_CUDNN) if role == "inference" else gm)
            computed = {f"triton_{k.name}": k for k in stages.plan.kernels}  # nothing is modelled of others
            forms = [(computed.get(t.name), form) for t in stages.kernels for form in t.versions]
            several = [(None, form) for form in stages.launched if form not in stages.kernels]
            for one, form in (*forms, *several):
                text = form.source.replace(f"def {form.name}(", "def kernel(")
                self.made.setdefault((text, form.block), Made(self.case, one, form))
        return EAGER.compile(gm, inputs, role)


def why_not_channels_last(node: fx.Node) -> str | None:
    """As on a device with tensor cores, which tensors on the CPU know nothing of."""
    found = input_and_result(node)
    return found if isinstance(found, str) else "convolved in groups" if in_groups(node) else None


AS_CUDNN = replace(ON_CUDA, why_not=why_not_channels_last)
CUDA, EAGER = CudaBackend(), find_backend("eager")

#: A case's name, and what runs it with a backend.
Program = tuple[str, Callable[[Any], object]]


def programs(selection: Selection) -> Iterator[Program]:
    """Every case of the registries, and every operator, that the selection's pattern takes."""
    for name, case, dtype in kernel_cases(selection):
        yield name, functools.partial(_run_kernel, case, dtype)
    yield from model_programs(selection)
    for name, op, kind in operator_cases(selection):
        yield name, functools.partial(_run_operator, op, kind)


def taken(selection: Selection, *names: str) -> bool:
    return any(fnmatch.fnmatch(name, selection.only) for name in names)


def kernel_cases(selection: Selection) -> Iterator[tuple[str, Case, str]]:
    """The registry's kernels in their types, with titles."""
    for case in CASES:
        for dtype in case.dtypes:
            if dtype in selection.dtypes and taken(selection, case.name, case.kind, "kernels"):
                yield f"{case.name}, {dtype}", case, dtype


def _run_kernel(case: Case, dtype: str, backend: Any) -> None:
    inputs = kernels.inputs_of(case, dtype)
    kernels.make_step(case, framesmith.compile(case.fn, backend=backend, strict=True), inputs)()


def model_programs(selection: Selection) -> Iterator[Program]:
    for row in zoo.MODELS:
        for mode, dtype in itertools.product(row.modes, row.dtypes):
            wanted = mode in selection.modes and dtype in selection.dtypes
            if wanted and taken(selection, row.name, row.kind, "models"):
                yield title(row, mode, dtype), functools.partial(_run_model, row, mode, dtype)


def _run_model(row: zoo.Model, mode: str, dtype: str, backend: Any) -> None:
    zoo.make_step(row, mode, dtype, lambda module: framesmith.compile(module, backend=backend, strict=True))()


def operator_cases(selection: Selection) -> Iterator[tuple[str, Any, torch.dtype]]:
    """Operators of torch's database in the types that they take, with titles."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        supported = op.supported_dtypes("cpu")
        for dtype in zoo.DTYPES:
            if zoo.DTYPES[dtype] in supported and dtype in selection.dtypes and taken(selection, name, "operators"):
                yield f"{name}, {dtype}", op, zoo.DTYPES[dtype]


def _run_operator(op: Any, dtype: torch.dtype, backend: Any) -> None:
    for _, _, call in operator_samples(op, dtype):
        call(backend)


def operator_samples(op: Any, dtype: torch.dtype) -> Iterator[tuple[Callable[..., Any], list[torch.Tensor], Any]]:
    """Of each sample that runs: a function of its tensors, these, and what gives its results with a backend.

    Where they are of a floating type and the operator has gradients, these are results too.
    """
    wants = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=wants), SAMPLES):
        flat, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        slots = [k for k, item in enumerate(flat) if isinstance(item, torch.Tensor)]
        tensors = [flat[k] for k in slots]
        if any(x.layout is not torch.strided for x in tensors):
            continue

        def call(*values: torch.Tensor, flat: Any = flat, spec: Any = spec, slots: Any = slots) -> list[Any]:
            items = list(flat)
            for k, value in zip(slots, values, strict=True):
                items[k] = value
            args, kwargs = tree_unflatten(items, spec)
            return tree_flatten(op.op(*args, **kwargs))[0]

        try:
            count = len(call(*copies(tensors)))
        except Exception:  # samples for other devices, and such that are to fail
            continue
        yield call, tensors, functools.partial(_through_backend, call, tensors, count)


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Leaves with the same values and strides."""
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]


def _through_backend(call: Callable[..., Any], tensors: list[torch.Tensor], count: int, backend: Any) -> list[Any]:
    """The results, and gradients of the floating inputs, of the sample as one graph through the backend."""
    graph = fx.Graph()
    inputs = tuple(graph.placeholder(f"x{k}") for k in range(len(tensors)))
    results = graph.call_function(call, inputs)
    graph.output(tuple(graph.call_function(_item, (results, k)) for k in range(count)))
    values = copies(tensors)
    try:
        compiled = compile_graph(fx.GraphModule({}, graph), values, compiler=backend.compile, lowers=backend.lowers)
    except AotUnsupported:  # nothing is compiled then, nor here
        return results_of(call, tensors)
    return with_gradients(compiled(*values), values)


def results_of(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The same in eager mode."""
    values = copies(tensors)
    return with_gradients(call(*values), values)


def _item(values: Sequence[Any], at: int) -> Any:
    return values[at]


def with_gradients(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The results, and the gradients of their sum for the inputs that want some."""
    leaves = [x for x in inputs if x.requires_grad]
    sums = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad and r.is_floating_point()]
    grads = torch.autograd.grad(sum(sums[1:], sums[0]), leaves, allow_unused=True) if leaves and sums else ()
    return [*results, *grads]
