"""Attention of a GPU in one kernel: numbers in Triton's interpreter, machine code, and what stays as it was."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from interpreter_scripts.attention import CASES, Case, attempts, function_of, hidden
from interpreter_scripts.run import interpreted

from framesmith_backends import cuda
from framesmith_backends.autotune.matmuls import MatmulTuner
from framesmith_backends.cuda import stages_of
from framesmith_backends.ir.expr import Cast, Ref
from framesmith_backends.ir.fused.attention import AttentionTile, FusedAttention
from framesmith_backends.ir.fused.matmul import FusedMatmul
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.ir.verify import Malformed, verify_item
from framesmith_backends.launch.cuda.kernel_runs import rendered
from framesmith_backends.schedule.plan import Plan
from framesmith_backends.schedule.steps import Allocate, CallStep, Run
from framesmith_backends.target import most_shared

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ALIBI = Case(lambda s, h, i, j, x: hidden(s - x[h] * (i - j), i >= j), ((4,),), 4, 4, 512, 512)


def inputs_of(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    sizes = (case.heads, case.queries, case.depth), *[(case.shared, case.keys, case.depth)] * 2
    return [*(torch.empty(2, *size, dtype=dtype) for size in sizes), *map(torch.empty, case.captured)]


def stages(case: Case, dtype: torch.dtype = BF16) -> Any:
    found = stages_of(trace(function_of(case), inputs_of(case, dtype)))
    for attention in found.plan.items_of(FusedAttention):
        verify_item(attention)
    return found


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's setting that matmuls of float32 may be rounded."""
    monkeypatch.setattr(cuda, "rounds_float32", lambda what: True)


@needs_triton
def test_interpreted_numbers_are_as_near_as_eagers() -> None:
    assert interpreted("attention").count("ok ") == len([*attempts()])


@pytest.mark.sampled(3)
@needs_triton
@pytest.mark.usefixtures("rounded")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("depth", "dtype"), [(64, BF16), (80, F16), (256, BF16), (64, F32)])
def test_attention_compiles_to_cubins(depth: int, dtype: torch.dtype, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.triton_jit import compiled as code_of

    (item,) = stages(replace(ALIBI, depth=depth), dtype).plan.items_of(FusedAttention)
    made = code_of(rendered(item), capability)
    assert made.asm["cubin"][:4] == b"\x7fELF" and made.metadata.shared <= most_shared(capability)
    wanted = "wgmma.mma_async" if capability == 90 and item.tile.rows >= 64 else "mma.sync"
    assert wanted in made.asm["ptx"]


def test_halves_are_read_where_they_lie_and_scores_are_nowhere() -> None:
    made = stages(ALIBI)
    (item,) = made.plan.items_of(FusedAttention)
    assert (item.queries.source, item.keys.source, item.factors) == ("x0", "x1", "bf16")
    assert "512, 512" not in made.plan.text() and "bmm" not in made.source.replace(item.result, "")


def test_attention_on_buffers_of_other_names() -> None:
    (item,) = stages(replace(ALIBI, captured=((4,),))).plan.items_of(FusedAttention)
    names = {param.name: f"other_{param.name}" for param in item.params}
    other = item.on(names)
    assert [param.name for param in other.params] == [names[param.name] for param in item.params]
    assert rendered(other).source == rendered(item).source


def test_attention_that_is_not_well_formed_is_refused() -> None:
    (item,) = stages(ALIBI).plan.items_of(FusedAttention)
    scores = item.scores
    for changed, problem in (
        ({"keys": item.queries}, "instead of"),
        ({"values": replace(item.values, shape=(1, *item.values.shape[1:]))}, "instead of"),
        ({"tile": AttentionTile(96, 64, 8, 3)}, "a tile of 96x64"),
        ({"scores": Cast(scores, "f64")}, "scores of f64"),
        ({"scores": scores + Ref("sum", "f32")}, "scores of .'sum'."),
        ({"columns": Var("other", item.columns.size)}, "variables"),
        ({"result": item.queries.source}, "an operand is written to"),
    ):
        with pytest.raises(Malformed, match=problem):
            verify_item(replace(item, **changed))


def test_a_first_loop_asks_the_mask_where_that_reads_little() -> None:
    def text(name: str) -> str:
        captured = tuple(tuple(512 if n == 40 else n for n in size) for size in CASES[name].captured)
        (item,) = stages(replace(CASES[name], queries=512, keys=512, captured=captured)).plan.items_of(FusedAttention)
        return rendered(item).source

    assert "last = tl.where" in text("causal") and "last = tl.where" in text("documents")
    assert "last = tl.where" not in text("a mask that is a table")
    assert "last = tl.where" not in text("hidden by the scores")


def test_matmuls_that_are_no_attention_are_not_fused() -> None:
    plain = Case(lambda s, h, i, j: s)
    assert not stages(plain, F32).plan.items_of(FusedAttention)  # matmuls of float32 are not rounded
    assert not stages(plain, torch.float64).plan.items_of(FusedAttention)
    assert not stages(replace(plain, also=lambda w: w)).plan.items_of(FusedAttention)
    assert not stages_of(trace_symbolic(function_of(plain), inputs_of(plain, BF16))).plan.items_of(FusedAttention)


def missing(plan: Plan) -> list[str]:
    """Buffers that a run is given before they are there."""
    there, found = {*plan.inputs}, []
    for step in plan.steps:
        if isinstance(step, Allocate):
            there.add(step.name)
        elif isinstance(step, CallStep):
            there.add(step.call.name)
        elif isinstance(step, Run):
            found += [name for name in step.buffers if name not in there]
    return found


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q.float() @ k.float().transpose(-2, -1) + added, -1).to(q.dtype) @ v


def test_operands_of_scores_are_computed_before_though_a_later_call_reads_them() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        table = x.float().exp()
        means = attended(q, k, v, table)
        return means, torch.linalg.inv(means[0, :16].float()), table @ w

    halves = [torch.empty(4, 300, 16, dtype=BF16) for _ in range(3)]
    plan = stages_of(trace(run, [*halves, torch.empty(300, 300, dtype=BF16), torch.empty(300, 8)])).plan
    assert len(plan.items_of(FusedAttention)) == 1
    assert not missing(plan)


def test_a_matmul_whose_result_attention_reads_is_stored_where_it_is_fused() -> None:
    class Fusing(MatmulTuner):
        def __call__(self, found: Any, program: Any) -> Any:
            return {one.call.name: one.matmul.tile for one in found}

    def run(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor) -> Any:
        q = x @ w
        return attended(q, k, v, added), (q * 2).relu()

    sizes = [(4, 64, 32), (4, 32, 16), (4, 64, 16), (4, 64, 16)]
    halves = [torch.empty(*size, dtype=BF16) for size in sizes]
    plan = stages_of(trace(run, [*halves, torch.empty(64, 64)]), choose=Fusing()).plan
    assert (len(plan.items_of(FusedAttention)), len(plan.items_of(FusedMatmul))) == (1, 1)
    assert not missing(plan)


def test_attention_is_not_moved_behind_a_call_that_writes_to_its_operands() -> None:
    def replaced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q.float() @ k.float().transpose(-2, -1), -1).to(q.dtype)
        if writes:
            torch.ops.aten.put_(q, torch.arange(4096).view(2, 4, 32, 16), k)
        return weights @ v

    for writes in (False, True):
        plan = stages_of(trace(replaced, [torch.empty(2, 4, 32, 16, dtype=BF16) for _ in range(3)])).plan
        assert len(plan.items_of(FusedAttention)) == (0 if writes else 1)
