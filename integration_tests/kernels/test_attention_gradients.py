"""Attention in training steps on GPUs, without one: what is kept, numbers in Triton's interpreter, machine code."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import framesmith
import framesmith_aot
from framesmith_backends import cuda
from framesmith_backends.cuda import CudaBackend, stages_of
from framesmith_backends.eager import run_eagerly
from framesmith_backends.ir.expr import Cast, Const, Load, Ref, loads
from framesmith_backends.ir.fused.attention import AttentionTile, FusedAttention
from framesmith_backends.ir.fused.attention_gradient import FusedAttentionGradient
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.verify import Malformed, verify_item
from framesmith_backends.launch.cuda.kernel_runs import rendered
from framesmith_backends.reporting import Refusal
from framesmith_backends.rewrite import attention_gradient as rewrite
from framesmith_backends.schedule.matmuls import attention_gradient
from framesmith_backends.schedule.matmuls.attention import Found
from framesmith_backends.schedule.matmuls.attention_gradient import moved_after
from framesmith_backends.schedule.steps import Allocate, CallStep, Run
from framesmith_backends.target import most_shared
from integration_tests.kernels import interpret_attention_gradients as cases
from integration_tests.kernels.interpret_attention_gradients import Case, attempts, function_of, hidden
from tools.warm_process import run_module

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Tensor = torch.Tensor
ALIBI = Case(lambda s, h, i, j, x: hidden(s - x[h] * (i - j), i >= j), ((4,),), 4, 4, 96, 128, 64, 64)


@pytest.fixture(autouse=True)
def rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's setting that matmuls of float32 may be rounded."""
    monkeypatch.setattr(cuda, "rounds_float32", lambda what: True)
    framesmith.reset()


def trained(function: Callable[..., Any], inputs: list[Tensor]) -> tuple[list[fx.GraphModule], list[str], list[Tensor]]:
    """The graphs of a training step as the cuda backend gets them, why weights are kept, results and gradients.

    The graphs are run by eager mode.
    """
    graphs: list[fx.GraphModule] = []
    reasons: list[str] = []
    backend = CudaBackend()

    def transform_step(graph: fx.Graph) -> fx.Graph | None:
        found = map(rewrite.trained, graph.find_nodes(op="call_function", target=torch.ops.aten._softmax.default))
        reasons.extend(one.reason for one in found if isinstance(one, Refusal))
        return backend.transform_step(graph)

    def compiler(gm: fx.GraphModule, inputs: Any, role: str) -> Any:
        graphs.append(gm)
        return run_eagerly(gm)

    def compiled(gm: fx.GraphModule, examples: Any) -> Any:
        lowers = backend.lowers
        return framesmith_aot.compile_graph(
            gm, examples, compiler=compiler, lowers=lowers, transform_step=transform_step
        ).function

    return graphs, reasons, cases.step(framesmith.compile(function, backend=compiled, strict=True), inputs)


def inputs_of(case: Case) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cases.CASES, "it", case)
        return cases.inputs_of("it")


@needs_triton
def test_interpreted_numbers_are_as_near_as_eagers() -> None:
    """In a process of its own: Triton decides at import whether functions are interpreted."""
    done = run_module("integration_tests.kernels.interpret_attention_gradients", variables={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("ok ") == len(attempts())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "causal", "of float32", "fully masked rows", "capped", "heads share keys", "of values alone",
        "padding hidden by the lowest number",
    ],
)  # fmt: skip
def test_graphs_are_right_without_any_kernel_of_attention(name: str) -> None:
    inputs, function = inputs_of(cases.CASES[name]), function_of(cases.CASES[name])
    graphs, reasons, found = trained(function, inputs)
    assert not reasons
    wanted = cases.step(function, inputs)
    tolerance = 1e-4 if inputs[0].dtype == F32 else 4e-2
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    scores = 2 * cases.CASES[name].heads * cases.CASES[name].queries * cases.CASES[name].keys
    assert all(node.meta["val"].numel() < scores for node in graphs[0].graph.output_node().args[0])


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q.float() @ k.float().transpose(-2, -1), -1).to(q.dtype)
    return F.dropout(weights, 0.5) @ v


def of_halves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q.float() @ k.float().transpose(-2, -1), -1).to(q.dtype)
    return weights @ v + weights.sum()


def with_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q.float() @ k.float().transpose(-2, -1)
    return torch.softmax(scores, -1).to(q.dtype) @ v + scores.logsumexp(-1, keepdim=True)


def of_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q.float() @ k.float().transpose(-2, -1), -2).to(q.dtype) @ v


@pytest.mark.parametrize("changed", [{"queries": 1}, {"keys": 1}])
def test_one_query_or_one_key_keeps_its_weights(changed: dict[str, int]) -> None:
    """Of one key the gradient is 0, which sums of results that were rounded would not be."""
    case = replace(cases.CASES["plain"], **changed)  # type: ignore[arg-type]
    inputs, function = inputs_of(case), function_of(case)
    _, reasons, found = trained(function, inputs)
    assert reasons == ["one query or one key"]
    for one, other in zip(found, cases.step(function, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (dropped, "probabilities are read by others too"),
        (of_halves, "no softmax of float32"),
        (with_weights, "probabilities are read by others too"),
        (with_sums, "scores are read by"),
        (of_columns, "no softmax of float32"),
    ],
)
def test_what_reads_weights_or_scores_keeps_them(function: Callable[..., Tensor], why: str) -> None:
    inputs = [torch.randn(2, 2, 20, 8).to(BF16).requires_grad_() for _ in range(3)]
    torch.manual_seed(0)
    _, reasons, found = trained(function, inputs)
    assert len(reasons) == 1 and reasons[0].startswith(why), reasons
    torch.manual_seed(0)
    for one, other in zip(found, cases.step(function, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_a_captured_table_of_which_a_gradient_is_asked_keeps_the_weights() -> None:
    case = cases.CASES["of slopes"]
    _, reasons, _ = trained(function_of(case), inputs_of(case))
    assert reasons == ["the scores' gradient is read by aten.sum.dim_IntList"]


def test_float32_that_is_not_rounded_keeps_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "rounds_float32", lambda what: False)
    case = replace(ALIBI, dtype=F32)
    graphs, reasons, _ = trained(function_of(case), inputs_of(case))
    assert not reasons  # it could be; the schedule would not take it
    assert any(node.meta["val"].numel() == 8 * 96 * 128 for node in graphs[0].graph.output_node().args[0])


@pytest.mark.parametrize("at", [0, 1])
def test_queries_and_keys_of_two_types_keep_the_weights(at: int) -> None:
    """The kernels of gradients would not take them; without these the second matmul is one more, and less exact."""
    inputs = inputs_of(cases.CASES["plain"])
    inputs[at] = inputs[at].detach().float().requires_grad_()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q.float() @ k.float().transpose(-2, -1), -1).to(BF16) @ v

    graphs, _, _ = trained(run, inputs)
    assert any(node.meta["val"].numel() == 4 * 40 * 40 for node in graphs[0].graph.output_node().args[0])


def plans(case: Case) -> Any:
    graphs, _, _ = trained(function_of(case), inputs_of(case))
    return [stages_of(graph).plan for graph in graphs]


@pytest.mark.sampled(4)
@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("depth", "dtype"), [(64, BF16), (80, F16)])
def test_gradients_compile_to_cubins(depth: int, dtype: torch.dtype, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.triton_jit import compiled as code_of

    _, backward = plans(replace(ALIBI, depth=depth, length=depth, dtype=dtype))
    assert len(backward.items_of(FusedAttentionGradient)) == 2
    for item in backward.items_of(FusedAttentionGradient):
        verify_item(item)
        made = code_of(rendered(item), capability)
        assert made.asm["cubin"][:4] == b"\x7fELF" and made.metadata.shared <= most_shared(capability)


def test_blocks_in_which_nothing_is_seen_are_passed_by_on_both_sides() -> None:
    _, backward = plans(ALIBI)
    assert all(item.seen is not None for item in backward.items_of(FusedAttentionGradient))
    assert all("last = tl.where" in rendered(replace(item, tile=AttentionTile(16, 16, 4, 1))).source
               for item in backward.items_of(FusedAttentionGradient))  # fmt: skip


def test_halves_are_read_where_they_lie_and_scores_are_nowhere() -> None:
    _, backward = plans(ALIBI)
    assert "96, 128" not in backward.text() and "aten.bmm" not in backward.text()
    types = {dtype for item in backward.items_of(FusedAttentionGradient) for _, dtype in item.operands}
    assert types == {"bf16"}


def test_gradients_on_buffers_of_other_names() -> None:
    _, backward = plans(ALIBI)
    for item in backward.items_of(FusedAttentionGradient):
        names = {param.name: f"other_{param.name}" for param in item.params}
        other = item.on(names)
        assert [param.name for param in other.params] == [names[param.name] for param in item.params]
        assert rendered(other).source == rendered(item).source


def test_gradients_that_are_not_well_formed_are_refused() -> None:
    item = plans(ALIBI)[1].items_of(FusedAttentionGradient)[0]
    (one, *rest), (matmul, *others) = item.sums, item.matmuls
    for changed, problem in (
        ({"matmuls": (replace(matmul, own=matmul.other), *others)}, "instead of"),
        ({"sums": (replace(one, factor=one.factor.transposed), *rest)}, "instead of"),
        ({"tile": AttentionTile(96, 64, 8, 3)}, "a tile of 96x64"),
        ({"sums": (replace(one, value=Cast(one.value, "f64")), *rest)}, "values of f64"),
        ({"sums": (replace(one, value=one.value + Ref("sum", "f32")), *rest)}, "values of .'sum'."),
        ({"other": Var("another", item.other.size)}, "variables"),
        ({"sums": ()}, "nothing is summed up"),
        ({"sums": (replace(one, result=replace(one.result, source=matmul.own.source)), *rest)}, "is written to"),
    ):
        with pytest.raises(Malformed, match=problem):
            verify_item(replace(item, **changed))


def three_factors(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor]:
    return (torch.bmm(torch.bmm(torch.bmm(x, a).exp(), b).exp(), c),)


def two_factors(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor]:
    return (torch.bmm(torch.bmm(x, a).exp(), torch.bmm(b, c).exp()),)


def attention_and_a_layer(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor]:
    return (torch.bmm(torch.bmm(torch.softmax(torch.bmm(x, a), -1), b).exp(), c),)


def graph_on_gpus(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> fx.GraphModule:
    with FakeTensorMode():
        return make_fx(function)(*(torch.empty(shape, device="cuda") for shape in shapes))


@pytest.mark.parametrize(
    ("function", "kernels"), [(three_factors, (0, 1)), (two_factors, (0, 1)), (attention_and_a_layer, (1, 0))]
)
def test_a_matmul_is_in_one_kernel_alone(function: Callable[..., Any], kernels: tuple[int, int]) -> None:
    """A kernel that takes a matmul's operand from what another one does not store would read undefined memory."""
    graph = graph_on_gpus(function, [(2, 64, 32), (2, 32, 96), (2, 96, 48), (2, 48, 96)])
    plan = stages_of(graph).plan
    assert (len(plan.items_of(FusedAttention)), len(plan.items_of(FusedAttentionGradient))) == kernels
    made = {*plan.inputs}
    for step in plan.steps:
        if isinstance(step, Allocate):
            made.add(step.name)
        elif isinstance(step, CallStep):
            assert made.issuperset(step.call.needs)
            made.add(step.call.name)
        elif isinstance(step, Run):
            assert made.issuperset(step.buffers)


def test_a_matmul_that_is_read_for_some_points_alone_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, Any]] = []
    moved = attention_gradient._moved

    def kept(kernel: Any, matmuls: Any) -> Any:
        given.append((kernel, matmuls))
        return moved(kernel, matmuls)

    monkeypatch.setattr(attention_gradient, "_moved", kept)
    stages_of(graph_on_gpus(two_factors, [(2, 64, 32), (2, 32, 96), (2, 96, 48), (2, 48, 96)]))
    kernel, matmuls = given[0]
    (own,) = kernel.passes
    (store,) = own.stores
    (load,) = {one for one in loads(store.value) if one.source in matmuls}
    some = store.value + Load(load.source, load.index, load.dtype, Const(True, "b1"))
    assert moved(kernel, matmuls) is not None
    changed = replace(kernel, passes=(replace(own, stores=(replace(store, value=some),)),))
    assert moved(changed, matmuls) is None


def test_results_are_given_with_the_last_of_their_nodes_alone() -> None:
    """Passes that moved other nodes may have changed their order."""
    nodes: list[Any] = [SimpleNamespace(number=number, before=0) for number in (3, 5, 7)]
    none = frozenset[Any]()
    assert moved_after(nodes, Found({}, none, none, none, none, {3: 7})) == [nodes[0], nodes[1], nodes[2]]
    assert moved_after(nodes, Found({}, none, none, none, none, {7: 3})) is None
