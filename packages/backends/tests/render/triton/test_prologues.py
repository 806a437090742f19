"""Operands that matmuls compute on the way in: numbers, by the IR's meaning and interpreted, and how one chooses."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.meaning import flat_memory, run_fused_matmul
from graphs.tracing import mutating, trace
from interpreter_scripts.attempts import some
from interpreter_scripts.prologues import BF16, CASES, TILE, attempts, compare, compiled, forced, inputs_of
from interpreter_scripts.run import interpreted
from render.triton.test_matmul_epilogues import StandInClock

from framesmith_backends.autotune.autotuner import autotuner
from framesmith_backends.autotune.matmuls import BASELINE, MatmulTuner
from framesmith_backends.cuda import TritonStages, stages_of
from framesmith_backends.ir.dtypes import DTYPES
from framesmith_backends.ir.expr import Load, Ref
from framesmith_backends.ir.fused.matmul import FusedMatmul, TileShape
from framesmith_backends.ir.kernel import Kernel
from framesmith_backends.ir.spec import run_kernel
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import ZERO
from framesmith_backends.ir.symbolic.size import hint
from framesmith_backends.ir.verify import Malformed, verify_item
from framesmith_backends.launch.cuda.kernel_runs import KernelRun, rendered
from framesmith_backends.render.triton.fused.matmul_tiles import (
    MOST_CANDIDATES,
    MOST_COMPUTED,
    MOST_EVENLY,
    MOST_IN_TURN,
    candidates,
    shared_bytes,
)
from framesmith_backends.schedule.matmuls.epilogues import Fusable
from framesmith_backends.schedule.steps import Allocate, Drop, Run
from framesmith_backends.target import GPU_CAPABILITY, GPU_PROCESSORS, most_shared

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
#: Cases whose matmuls compute an operand, and that are nothing but kernels and matmuls then.
COMPUTED = [name for name, (_, _, ways) in CASES.items() if all(len(some) > 1 for some in ways)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    autotuner.cache_clear()


def linear(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w.to(x.dtype) * s[:, None]))


def layer() -> list[torch.Tensor]:
    return [torch.randn(256, 768).to(BF16), torch.ones(3072, 768, dtype=torch.int8), torch.randn(3072).to(BF16)]


def fusable_of(function: Any = linear, inputs: Sequence[torch.Tensor] | None = None) -> Fusable:
    found: list[Fusable] = []

    class Noting(MatmulTuner):
        def __call__(self, fusable: Sequence[Fusable], program: Any) -> dict[str, TileShape]:
            found.extend(fusable)
            return {}

    stages_of(trace(function, layer() if inputs is None else [*inputs]), choose=Noting())
    return found[0]


def run_by_meaning(stages: TritonStages, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of the plan's kernels and matmuls by the interpreter of the IR."""
    plan, layouts = stages.plan, dict(stages.lowering.program.layouts)
    tensors = dict(zip(plan.inputs, inputs, strict=True))
    for step in plan.steps:
        if isinstance(step, Allocate):
            layout = layouts[step.name] = step.layout
            shape, strides = ([hint(n) for n in some] for some in (layout.shape, layout.strides))
            tensors[step.name] = torch.empty_strided(shape, strides, dtype=DTYPES[layout.dtype].torch)
        elif isinstance(step, Run):
            memory = {name: flat_memory(tensors[name], layouts[name]) for name in step.buffers}
            inner = KernelRun(step, (), ()).arguments([tensors[name] for name in step.buffers])[len(step.buffers) :]
            memory |= {one.name: tensor for one, tensor in zip(step.inner, inner, strict=True)}
            for item in step.items:
                if isinstance(item, FusedMatmul):
                    verify_item(item)
                    run_fused_matmul(item, memory)
                else:
                    assert isinstance(item, Kernel)
                    run_kernel(item, memory)
        else:
            assert isinstance(step, Drop)
    return [tensors[str(name)] for name in plan.outputs]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tile", [TILE, TileShape(16, 16, 16, 4, 2, 2)])
@pytest.mark.parametrize("name", COMPUTED)
def test_prologues_mean_what_eager_mode_computes(name: str, tile: TileShape) -> None:
    inputs = inputs_of(name, BF16)
    compare(name, run_by_meaning(compiled(name, inputs, tile), inputs), inputs, BF16)


@needs_triton
def test_interpreted_numbers_are_as_near_as_eagers() -> None:
    assert interpreted("prologues").count("ok ") == len(some(attempts()))


def test_prologues_are_checked() -> None:
    fusable = fusable_of()
    matmul = fusable.in_tiles(replace(fusable.matmul.tile, computed=(False, True)))
    verify_item(matmul)
    written = matmul.epilogue.passes[0].stores[0].buffer
    for broken, problem in (
        (replace(matmul, prologues=(None, None)), "0 of them for 64x64"),
        (replace(matmul, tile=fusable.matmul.tile), "1 of them for 64x64"),
        (replace(matmul, prologues=(None, Ref("matmul", "bf16"))), "refers to nothing"),
        (replace(matmul, prologues=(None, Load(written, (ZERO,), "bf16"))), "is written to"),
        (replace(matmul, dtype="f16"), "it is bf16, the matmul f16"),
        (replace(matmul, prologues=(None, Load("x1", (index.of(matmul.rows),), "bf16"))), "variables \\['pm'\\]"),
    ):
        with pytest.raises(Malformed, match=problem):
            verify_item(broken)


def test_both_variants_are_measured_and_the_fastest_is_taken() -> None:
    names = [f"{tile.text()}" for tile in tiles_of((False, True))]
    assert names and all(name.endswith(", b on the way in") for name in names)
    clock = StandInClock(**{names[1]: 6e-6, tiles_of((False, False))[0].text(): 7e-6})
    stages = stages_of(trace(linear, layer()), choose=MatmulTuner(clock))
    (matmul,) = stages.plan.items_of(FusedMatmul)
    verify_item(matmul)
    assert matmul.tile.text() == names[1] and not stages.plan.kernels
    assert stages.matmuls.startswith("mm_default: aten.mm.default and its kernel and what computes b\n")
    assert f"{names[1]}: 6.00 us, chosen" in stages.matmuls
    (trial,) = clock.asked
    assert len(trial.tiles) <= MOST_CANDIDATES + MOST_COMPUTED + MOST_IN_TURN + MOST_EVENLY


def tiles_of(way: tuple[bool, bool]) -> list[TileShape]:
    one = fusable_of()
    return candidates(one.in_tiles(replace(one.matmul.tile, computed=way)), GPU_CAPABILITY, GPU_PROCESSORS)


def test_operands_stay_kernels_where_that_is_faster() -> None:
    first = tiles_of((False, False))[0].text()
    stages = stages_of(trace(linear, layer()), choose=MatmulTuner(StandInClock(**{first: 7e-6})))
    assert len(stages.plan.items_of(FusedMatmul)) == 1 and len(stages.plan.kernels) == 1


def test_the_present_form_has_both_kernels() -> None:
    stages = stages_of(trace(linear, layer()), choose=MatmulTuner(StandInClock()))
    assert not stages.plan.items_of(FusedMatmul) and len(stages.plan.kernels) == 2
    assert f"{BASELINE}: 10.00 us, chosen" in stages.matmuls


def test_unmeasured_matmuls_are_reported_with_their_candidates() -> None:
    reported = stages_of(trace(linear, layer()), choose=MatmulTuner()).matmuls
    assert "unmeasured: ATen; to be measured: " in reported and "b on the way in" in reported


def test_times_depend_on_what_computes_the_operand() -> None:
    clock = StandInClock()
    for function in (linear, lambda x, w, s: F.silu(F.linear(x, w.to(x.dtype) * s[:, None] * 2))):
        stages_of(trace(function, layer()), choose=MatmulTuner(clock))
    assert len(clock.asked) == 2
    stages_of(trace(linear, layer()), choose=MatmulTuner(clock))
    assert len(clock.asked) == 2


def test_mutated_inputs_are_not_read_later() -> None:
    choose = forced()
    gm = mutating(lambda x, w: (w + 1, (x @ (w * 2)).relu()), [torch.randn(20, 64), torch.randn(64, 32)], [1])
    stages_of(gm, choose=choose)
    assert choose.ways == ([(False, False)],)
    gm = mutating(lambda x, w: (x + 1, (x @ (w * 2)).relu()), [torch.randn(20, 64), torch.randn(64, 32)], [1])
    stages_of(gm, choose=choose)
    assert choose.ways == ([(False, False)],)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_tiles_that_compute_operands_fit_the_device(capability: int) -> None:
    one = fusable_of()
    matmul = one.in_tiles(replace(one.matmul.tile, computed=(False, True)))
    found = candidates(matmul, capability, GPU_PROCESSORS)
    assert 0 < len(found) <= MOST_COMPUTED
    assert all(
        tile.computed == (False, True) and shared_bytes(matmul, tile) <= most_shared(capability) for tile in found
    )
    assert capability >= 100 or all(tile.rows * tile.columns <= 64 * 32 * tile.warps for tile in found)


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_matmuls_that_compute_operands_compile_to_cubins(capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.triton_jit import compiled as code_of

    one = fusable_of()
    tile = TileShape(128, 128, 64, 8, 3, computed=(False, True))
    (item,) = one.items(tile)
    assert isinstance(item, FusedMatmul)
    made = code_of(rendered(item), capability)
    assert made.asm["cubin"][:4] == b"\x7fELF"
    assert made.metadata.shared <= shared_bytes(item, tile) <= most_shared(capability)
    assert "cp.async" in made.asm["ptx"] and ("wgmma" if capability == 90 else "mma.sync") in made.asm["ptx"]
