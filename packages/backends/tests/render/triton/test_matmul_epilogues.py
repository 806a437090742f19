"""Matmuls with epilogues: numbers in Triton's interpreter, machine code, autotuning."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from interpreter_scripts.attempts import some
from interpreter_scripts.matmuls import attempts
from interpreter_scripts.run import interpreted

from framesmith_aten.contract import OnError
from framesmith_backends import CudaBackend, reporting, storage
from framesmith_backends.autotune.autotuner import MARGIN, Times, autotuner
from framesmith_backends.autotune.matmuls import BASELINE, MatmulTrial, MatmulTuner
from framesmith_backends.cuda import TritonStages, stages_of
from framesmith_backends.ir.fused.matmul import FusedMatmul, Rest, TileShape
from framesmith_backends.ir.kernel import Kernel, Store
from framesmith_backends.ir.program import Program
from framesmith_backends.ir.verify import Malformed, verify_item
from framesmith_backends.launch.cuda.kernel_runs import rendered
from framesmith_backends.render.triton.fused.matmul import render_matmul
from framesmith_backends.render.triton.fused.matmul_tiles import (
    MOST_CANDIDATES,
    MOST_EVENLY,
    MOST_IN_TURN,
    candidates,
    shared_bytes,
)
from framesmith_backends.schedule.matmuls.epilogues import Fusable
from framesmith_backends.schedule.steps import Run
from framesmith_backends.target import GPU_CAPABILITY, GPU_PROCESSORS, most_shared

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
BF16 = torch.bfloat16


def inputs_of(*shapes: tuple[int, ...], dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


LAYER = ((256, 768), (3072, 768), (3072,))


class StandInClock:
    """A clock with given seconds by the candidates' names; others are slow."""

    about: tuple[object, ...] = ("a device",)
    capability, processors = GPU_CAPABILITY, GPU_PROCESSORS

    def __init__(self, **seconds: float) -> None:
        self.seconds: dict[str, float] = {BASELINE: 1e-5, **seconds}
        self.asked: list[MatmulTrial] = []
        self.error: Exception | None = None
        self.free = True

    def is_free(self) -> bool:
        return self.free

    def times(self, trials: Sequence[MatmulTrial], program: Program) -> list[Times | Exception]:
        self.asked += trials
        if self.error is not None:
            return [self.error] * len(trials)
        names = [(BASELINE, *(tile.text() for tile in trial.tiles)) for trial in trials]
        return [{name: self.seconds.get(name, 1.0) for name in own} for own in names]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    autotuner.cache_clear()
    reporting.log_once.cache_clear()
    return tmp_path / "framesmith"


def fusable_of(shapes: Sequence[tuple[int, ...]] = LAYER, dtype: torch.dtype = BF16) -> Fusable:
    found: list[Fusable] = []

    class Noting(MatmulTuner):
        def __call__(self, fusable: Sequence[Fusable], program: Program) -> Mapping[str, TileShape]:
            found.extend(fusable)
            return {}

    stages_of(trace(layer, inputs_of(*shapes, dtype=dtype)), choose=Noting())
    return found[0]


def tile_names() -> list[str]:
    return [tile.text() for tile in candidates(fusable_of().matmul, GPU_CAPABILITY, GPU_PROCESSORS)]


def compiled(
    clock: StandInClock, function: Any = layer, shapes: Any = LAYER, dtype: Any = BF16, on_error: OnError | None = None
) -> TritonStages:
    stages = stages_of(trace(function, inputs_of(*shapes, dtype=dtype)), choose=MatmulTuner(clock, on_error=on_error))
    for matmul in stages.plan.items_of(FusedMatmul):
        verify_item(matmul)
    return stages


def storing(matmul: FusedMatmul, *stores: Store) -> Kernel:
    """The matmul's epilogue with other stores."""
    return replace(matmul.epilogue, passes=(replace(matmul.epilogue.passes[0], stores=stores),))


def test_matmuls_are_checked() -> None:
    fusable = fusable_of()
    matmul, tile = fusable.matmul, fusable.matmul.tile
    for tiled in (tile, replace(tile, splits=4), replace(tile, programs=132), replace(tile, evenly=132)):
        (first, *_) = fusable.items(tiled)
        assert isinstance(first, FusedMatmul)
        verify_item(first)
    (stores,) = (one.stores for one in matmul.epilogue.passes)
    written = matmul.a.source
    other = storing(matmul, replace(stores[0], buffer=written))
    for broken, problem in (
        (replace(matmul, depth=matmul.depth + 1), "instead of"),
        (replace(matmul, tile=replace(tile, rows=48)), "a tile of 48x"),
        (replace(matmul, tile=replace(tile, splits=2)), "2 parts of the depth along None"),
        (replace(matmul, tile=replace(tile, evenly=132)), "the rest of 64x64x32 evenly by 132"),
        (replace(matmul, rest=Rest("rest", known=True)), "the rest of 64x64x32, 4 warps"),
        (replace(matmul, tile=replace(tile, evenly=192), rest=Rest("rest", known=True)), "0 tiles in 24 steps"),
        (replace(matmul, epilogue=replace(matmul.epilogue, outer=())), "the loops of its epilogue"),
        (replace(matmul, epilogue=storing(matmul)), "stores to"),
        (replace(matmul, epilogue=other), "an operand is written to"),
    ):
        with pytest.raises(Malformed, match=problem):
            verify_item(broken)


@needs_triton
def test_interpreted_numbers_are_as_near_as_eagers() -> None:
    assert interpreted("matmuls").count("ok ") == len(some(attempts()))


@needs_triton
def test_the_clock_leaves_out_what_does_not_compile_and_what_is_wrong() -> None:
    assert "ok clock" in interpreted("matmuls", "clock")


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("shapes", "dtype", "tile"),
    [
        (LAYER, BF16, TileShape(128, 128, 64, 8, 3)),
        (((70, 77), (50, 77), (50,)), torch.float16, TileShape(64, 64, 32, 4, 3)),
        (LAYER, torch.float32, TileShape(64, 64, 32, 4, 3)),
        (((16, 4096), (64, 4096), (64,)), BF16, TileShape(16, 32, 128, 4, 3, 4)),
        (LAYER, BF16, TileShape(64, 64, 64, 4, 4, programs=132)),
        (LAYER, BF16, TileShape(64, 64, 64, 4, 4, evenly=132)),
    ],
)
def test_matmuls_compile_to_cubins(shapes: Any, dtype: torch.dtype, tile: TileShape, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.triton_jit import compiled as code_of

    items = [item for item in fusable_of(shapes, dtype).items(tile) if isinstance(item, FusedMatmul)]
    assert len(items) == 1 + (tile.evenly > 0)
    for item in items:
        made = code_of(rendered(item), capability)
        assert made.asm["cubin"][:4] == b"\x7fELF" and made.metadata.shared <= shared_bytes(item, tile)
        wanted = "wgmma.mma_async" if capability == 90 and tile.rows >= 64 else "mma.sync"
        assert wanted in made.asm["ptx"]


@pytest.mark.parametrize("capability", [75, 80, 86, 90, 100])
@pytest.mark.parametrize("shapes", [LAYER, ((1, 8), (8, 8), (8,)), ((16, 8192), (32, 8192), (32,))])
def test_few_tiles_that_fit_the_device_are_measured(capability: int, shapes: Any) -> None:
    matmul = fusable_of(shapes).matmul
    tiles = candidates(matmul, capability, GPU_PROCESSORS)
    assert (
        (capability < 80 or tiles)
        and len(tiles) <= MOST_CANDIDATES + MOST_IN_TURN + MOST_EVENLY
        and len({tile.text() for tile in tiles}) == len(tiles)
    )
    for tile in tiles:
        size = (tile.rows + tile.columns) * tile.depth * 2 * tile.stages
        assert size <= most_shared(capability)
        assert tile.depth >= 16 and tile.depth & (tile.depth - 1) == 0


def test_the_fastest_form_is_taken() -> None:
    first, second, *_ = tile_names()
    stages = compiled(StandInClock(**{first: 8e-6, second: 7e-6}))
    (matmul,) = stages.plan.items_of(FusedMatmul)
    assert matmul.tile.text() == second
    assert f"{second}: 7.00 us, chosen" in stages.matmuls and f"{BASELINE}: 10.00 us\n" in f"{stages.matmuls}\n"
    assert "aten.addmm" not in stages.source and "# matmuls\naddmm_default: aten.addmm.default and its kernel" in (
        stages.text()
    )


def test_the_present_form_stays_where_nothing_is_faster_by_the_margin() -> None:
    first, *_ = tile_names()
    stages = compiled(StandInClock(**{first: 1e-5 * (MARGIN + 0.01)}))
    assert not stages.plan.items_of(FusedMatmul) and f"{BASELINE}: 10.00 us, chosen" in stages.matmuls
    assert "op_aten_addmm" in stages.source


@pytest.mark.parametrize("kind", ["in turn by", "evenly by"])
def test_programs_that_go_over_several_tiles_are_measured(kind: str) -> None:
    shapes = ((2304, 4096), (1024, 4096), (1024,))
    found = candidates(fusable_of(shapes).matmul, GPU_CAPABILITY, GPU_PROCESSORS)
    tile = next(tile for tile in found if kind in tile.text())
    assert tile.programs + tile.evenly == GPU_PROCESSORS
    stages = compiled(StandInClock(**{tile.text(): 5e-6}), shapes=shapes)
    items = stages.plan.items_of(FusedMatmul)
    assert all(item.tile == tile for item in items) and len(items) == 1 + (tile.evenly > 0)
    assert f"{tile.text()}: 5.00 us, chosen" in stages.matmuls
    assert ("in shares" in stages.text()) == (tile.evenly > 0)
    inner = [one.size for step in stages.plan.steps if isinstance(step, Run) for one in step.inner]
    assert inner == [4 * tile.evenly * 2 * tile.rows * tile.columns] * (tile.evenly > 0)


@pytest.mark.parametrize(("rows", "has"), [(2304, True), (16384, False)])
def test_the_last_wave_is_split_where_processors_would_wait(rows: int, has: bool) -> None:
    found = candidates(fusable_of(((rows, 4096), (2048, 4096), (2048,))).matmul, GPU_CAPABILITY, GPU_PROCESSORS)
    assert any(tile.evenly for tile in found) == has


def test_narrow_rows_have_a_program_for_each_tile() -> None:
    for columns, has in ((1000, True), (1001, False)):
        found = candidates(
            fusable_of(((2304, columns), (1024, columns), (1024,))).matmul, GPU_CAPABILITY, GPU_PROCESSORS
        )
        assert found and any(tile.programs or tile.evenly for tile in found) == has


@pytest.mark.parametrize(("capability", "rows", "dtype", "has"), [
    (90, 8192, BF16, True), (80, 8192, BF16, False), (90, 8190, BF16, False), (90, 8192, torch.float32, False),
    (100, 8192, BF16, False),
])  # fmt: skip
def test_programs_in_turn_have_as_many_sums_as_fit(capability: int, rows: int, dtype: torch.dtype, has: bool) -> None:
    shapes = ((rows, 256), (4096, 256), (4096,))
    found = candidates(fusable_of(shapes, dtype).matmul, capability, GPU_PROCESSORS)
    in_turn = [tile for tile in found if tile.programs]
    assert in_turn and any(tile.rows * tile.columns > 64 * 32 * tile.warps for tile in in_turn) == has


def test_equal_matmuls_are_measured_once() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return layer(layer(layer(x, w, b), v, c), w, b)

    clock = StandInClock(**{tile_names()[0]: 5e-6})
    shapes = ((256, 768), (768, 768), (768,), (768, 768), (768,))
    stages = compiled(clock, layers, shapes)
    assert len(clock.asked) == 2  # the first reads an input of the graph, which is not in the cache
    assert stages.matmuls.count("and its kernel") == 3


def test_choices_are_stored() -> None:
    first, *_ = tile_names()
    clock = StandInClock(**{first: 8e-6})
    compiled(clock)
    again = StandInClock()
    for _ in range(2):
        (matmul,) = compiled(again).plan.items_of(FusedMatmul)
        assert matmul.tile.text() == first and not again.asked
        autotuner.cache_clear()  # as another process


@pytest.mark.parametrize("damage", ["bytes", "text", "format", "names", "numbers"])
def test_kept_choices_that_do_not_fit_are_made_again(damage: str, own_folder: Path) -> None:
    compiled(StandInClock())
    (file,) = own_folder.glob("choice-*.json")
    contents = {
        "text": b"[", "format": json.dumps({"format": 0, "times": {BASELINE: 1.0}}).encode(),
        "names": json.dumps({"format": 1, "times": {BASELINE: 1.0, "another": 0.5}}).encode(),
        "numbers": json.dumps({"format": 1, "times": {BASELINE: -1.0}}).encode(),
    }  # fmt: skip
    if damage == "bytes":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        assert storage.write(file.name, contents[damage])
    autotuner.cache_clear()
    clock = StandInClock()
    compiled(clock)
    assert len(clock.asked) == 1


def test_times_of_another_device_or_version_do_not_count() -> None:
    compiled(StandInClock())
    other = StandInClock()
    other.about = ("another device",)
    compiled(other)
    assert len(other.asked) == 1


@needs_triton
def test_code_and_times_depend_on_the_functions_that_kernels_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.autotune import matmuls
    from framesmith_backends.launch.cuda import cubins, triton_support
    from framesmith_backends.launch.cuda.support_source import support_digest
    from framesmith_backends.render.llvm.math import approximate

    source = Path(triton_support.__file__).read_bytes()
    numbers = repr((approximate.GELU_END, approximate.GELU_P)).encode()
    assert support_digest() == hashlib.sha256(source + numbers).hexdigest()[:32]
    trials: list[tuple[MatmulTrial, Program]] = []

    class Noting(MatmulTuner):
        def __call__(self, found: Sequence[Fusable], program: Program) -> Mapping[str, TileShape]:
            trials.extend((MatmulTrial(one, (one.matmul.tile,)), program) for one in found)
            return {}

    stages_of(trace(layer, inputs_of(*LAYER)), choose=Noting())
    ((trial, program),) = trials
    kernel = render_matmul(trial.fusable.matmul, "kernel")
    names = trial.key(program, ()), cubins._file(kernel, False, 90)
    for module in (matmuls, cubins):
        monkeypatch.setattr(module, "support_digest", lambda: "others")
    assert trial.key(program, ()) != names[0]
    assert cubins._file(kernel, False, 90) != names[1]


def test_times_depend_on_shapes_layouts_and_what_follows() -> None:
    clock = StandInClock()
    for function, shapes in (
        (layer, LAYER), (layer, ((128, 768), *LAYER[1:])), (lambda x, w, b: F.relu(F.linear(x, w, b)), LAYER),
        (lambda x, w, b: F.gelu(torch.addmm(b, x, w)), (LAYER[0], (768, 3072), LAYER[2])),
    ):  # fmt: skip
        compiled(clock, function, shapes)
    compiled(clock, dtype=torch.float16)
    assert len(clock.asked) == 5


class Broken(StandInClock):
    """Raises instead of reporting what kept a matmul from being timed."""

    def times(self, trials: Sequence[MatmulTrial], program: Program) -> list[Times | Exception]:
        raise RuntimeError("out of memory")


def failing() -> StandInClock:
    clock = StandInClock()
    clock.error = RuntimeError("out of memory")
    return clock


@pytest.mark.parametrize("made", [failing, Broken])
def test_failures_are_reported_and_leave_the_present_kernels(made: Callable[[], StandInClock]) -> None:
    reported: list[str] = []
    stages = compiled(made(), on_error=lambda where, error: reported.append(f"{where}: {error}"))
    assert reported == ["matmuls by other candidates than ATen's: out of memory"]
    assert not stages.plan.items_of(FusedMatmul)


@pytest.mark.parametrize("made", [failing, Broken])
def test_failures_are_raised_without_on_error(made: Callable[[], StandInClock]) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        compiled(made())


@pytest.mark.parametrize("made", [failing, Broken])
def test_on_error_may_raise(made: Callable[[], StandInClock]) -> None:
    """As under `strict`."""

    def strictly(where: str, error: Exception) -> None:
        raise error if isinstance(error, KeyError) else KeyError(where)

    with pytest.raises(KeyError, match="matmuls"):
        compiled(made(), on_error=strictly)


def test_nothing_is_measured_while_a_graph_is_captured() -> None:
    clock = StandInClock()
    clock.free = False
    assert not compiled(clock).plan.items_of(FusedMatmul) and not clock.asked


def test_exact_matmuls_of_float32_are_not_tried() -> None:
    clock = StandInClock()
    gm = trace(layer, inputs_of(*LAYER, dtype=torch.float32))
    stages_of(gm, choose=MatmulTuner(clock, exact=True))
    assert not clock.asked
    stages_of(gm, choose=MatmulTuner(clock, exact=False))
    assert len(clock.asked) == 1


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0])
@pytest.mark.parametrize("call", [torch.addmm, torch.baddbmm])
def test_matmuls_that_do_not_count_are_not_tried(call: Any, alpha: float) -> None:
    clock = StandInClock()
    first = (3,) if call is torch.baddbmm else ()
    shapes = ((*first, 256, 512), (*first, 256, 768), (*first, 768, 512))
    compiled(clock, lambda c, a, b: call(c, a, b, alpha=alpha).relu(), shapes)
    assert not clock.asked
    compiled(clock, lambda c, a, b: call(c, a, b, beta=alpha).relu(), shapes)
    assert len(clock.asked) == 1


def test_symbolic_sizes_are_not_tried() -> None:
    clock = StandInClock()
    stages_of(trace_symbolic(lambda x, w: (x @ w).relu(), inputs_of((20, 64), (64, 32))), choose=MatmulTuner(clock))
    assert not clock.asked


def test_operands_that_the_graph_writes_to_are_not_tried() -> None:
    from graphs.tracing import mutating

    clock = StandInClock()
    gm = mutating(lambda x, w: (w + 1, (x @ w).relu()), inputs_of((20, 64), (64, 32)), [1])
    stages_of(gm, choose=MatmulTuner(clock))
    assert not clock.asked


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_explain_names_what_would_be_measured(mode: str) -> None:
    stages = CudaBackend().explain(trace(layer, inputs_of(*LAYER)), {"mode": mode})
    assert f"unmeasured: {BASELINE}; to be measured: {tile_names()[0]}" in stages.matmuls
    assert "mode asks for no measuring" in CudaBackend().explain(trace(layer, inputs_of(*LAYER))).text()
