"""Autotuned kernels: numbers in Triton's interpreter, code, candidates, and the choice of the fastest."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from case_selection.gpus import with_capabilities
from case_selection.sweeps import a_part
from graphs.tracing import mutating, trace
from graphs.tracing_symbolic import trace_symbolic
from interpreter_scripts.run import interpreted
from interpreter_scripts.tiles import PART, cases, clocked
from sample_programs.list_steps import adam
from stand_ins.tile_clock import Preferring
from torch import fx

from framesmith_aten.contract import OnError
from framesmith_backends import CudaBackend, reporting, storage
from framesmith_backends.autotune import tiles as choosing_tiles
from framesmith_backends.autotune.autotuner import MARGIN, Times, autotuner
from framesmith_backends.autotune.tiles import BY_RULE, InForm, TileTrial, TileTuner, in_form, trial_of
from framesmith_backends.autotune.trials import TooLarge
from framesmith_backends.cuda import TritonStages, kernel_runs, stages_of
from framesmith_backends.ir.program import Program
from framesmith_backends.render.triton.horizontal import Gathered
from framesmith_backends.render.triton.tile_candidates import MOST_CONFIGS
from framesmith_backends.target import most_shared

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
BF16 = torch.bfloat16
Function = Callable[..., Any]


def empty(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape in shapes]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


LARGE = (2048, 2048)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    autotuner.cache_clear()
    reporting.log_once.cache_clear()
    return tmp_path / "framesmith"


def compiled(
    clock: Preferring | None, function: Function = scaled, shapes: Any = (LARGE,), on_error: OnError | None = None
) -> TritonStages:
    return stages_of(trace(function, empty(*shapes)), tiles=TileTuner(clock, on_error))


def trials_of(gm: fx.GraphModule) -> list[TileTrial]:
    found: list[TileTrial] = []

    class Noting(TileTuner):
        def __call__(self, given: Sequence[Gathered], program: Program) -> Mapping[str, InForm]:
            found.extend(trial for one in given if (trial := trial_of(one, program)))
            return {}

    stages_of(gm, tiles=Noting())
    return found


@needs_triton
def test_interpreted_numbers_are_eagers_in_every_form() -> None:
    assert interpreted("tiles").count("ok ") == len(a_part(cases(), PART))


@needs_triton
def test_the_clock_leaves_out_what_does_not_compile_and_what_is_wrong() -> None:
    assert interpreted("tiles", "clock").count("ok ") == len(a_part(clocked(), 3)) + 1


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() * y


def upsampled(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2.0) + 1


def biased(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x + b).tanh()


def norm_across(positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(positions + x.transpose(1, 2), (x.shape[1],))


def sums_of_two_loops(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum((1, 3))


CANDIDATES: tuple[tuple[Function, tuple[tuple[int, ...], ...], list[str]], ...] = (
    (scaled, (LARGE,), ["1024, 4 warps", "2048, 8 warps", "1024, 8 warps", "512, 2 warps", "1024, 2 warps"]),
    (biased, (LARGE, (2048,)), ["1024, 4 warps", "1024, 4 warps, once past L1", "2048, 8 warps", "1024, 8 warps",
                                "512, 2 warps", "1024, 2 warps"]),
    (softmax, (LARGE,), ["2048, 8 warps", "2x2048, 16 warps", "1024, 4 warps"]),
    (softmax, ((64, 65536),), ["2048, 8 warps", "4096, 16 warps"]),
    (column_sums, ((8192, 4096),), ["64x32, 8 warps", "32x64, 8 warps", "128x16, 8 warps", "128x32, 16 warps"]),
    (upsampled, ((16, 64, 64, 64),), ["8x64x2, 4 warps", "16x64, 16 warps"]),
    (norm_across, ((128, 384), (64, 384, 128)), ["8x512, 16 warps", "16x512, 16 warps", "4x512, 8 warps"]),
    (norm_across, ((128, 20000), (8, 20000, 128)), ["8x1024, 16 warps", "8x2048, 16 warps", "8x512, 16 warps"]),
    (sums_of_two_loops, ((200, 2000, 2, 9),), ["128x16, 8 warps", "256x16, 16 warps", "64x16, 4 warps"]),
    (transposed, (LARGE, LARGE), ["32x32, 4 warps", "64x32, 8 warps", "32x64, 8 warps", "64x64, 16 warps"]),
)  # fmt: skip


@pytest.mark.parametrize(("function", "shapes", "wanted"), CANDIDATES)
def test_candidates_differ_from_the_rules_in_one_thing_each(function: Function, shapes: Any, wanted: list[str]) -> None:
    (trial, *_) = trials_of(trace(function, empty(*shapes)))
    found = [one.text() for one in trial.candidates]
    assert found[0] == wanted[0] and {*wanted} <= {*found} and len({*found}) == len(found) <= MOST_CONFIGS


@needs_triton
@pytest.mark.parametrize(("case", "capability"), with_capabilities((biased, softmax, column_sums, transposed)))
def test_candidates_compile_to_cubins(case: Function, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.triton_jit import compiled as code_of

    (trial, *_) = trials_of(trace(case, empty(*next(shapes for function, shapes, _ in CANDIDATES if function is case))))
    for candidate in trial.candidates[:3]:
        kernel = in_form(trial.one, candidate).launch.kernel
        made = code_of(kernel, capability)
        assert made.metadata.num_warps == candidate.warps and made.metadata.shared <= most_shared(capability)
        assert ("ld.global.cg" in made.asm["ptx"]) == candidate.past_l1


def test_the_fastest_form_is_taken() -> None:
    stages = compiled(Preferring(0))
    assert "kernel0: 32 MiB, by rule 1024, 4 warps" in stages.tiles
    assert "  2048, 8 warps: 5.00 us, chosen\n  by rule: 10.00 us\n" in stages.tiles
    (kernel,) = stages.kernels
    assert (kernel.block, kernel.warps, kernel.grid) == (2048, 8, 2048) and "tl.arange(0, 2048)" in kernel.source
    assert stages.launched == [kernel] and f"# tiles\n{stages.tiles}" in stages.text()


def test_the_rules_form_stays_where_nothing_is_faster_by_the_margin() -> None:
    clock = Preferring(0)
    clock.seconds = 1e-5 * (MARGIN + 0.01)
    stages = compiled(clock)
    assert clock.preferred and "  by rule: 10.00 us, chosen" in stages.tiles
    assert [k.source for k in stages.kernels] == [k.source for k in compiled(None).kernels]


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = F.layer_norm(x, (2048,), weight).sin().t().contiguous()
    return x


def test_equal_kernels_are_measured_once_and_have_equal_candidates() -> None:
    clock = Preferring(0)
    stages = compiled(clock, layers, (LARGE, *[(2048,)] * 4))
    assert len({trial.name for trial in clock.asked}) == len(clock.asked) < stages.tiles.count("chosen")
    by_rule = compiled(None, layers, (LARGE, *[(2048,)] * 4))
    texts, before = ({k.source.partition("\n")[2] for k in one.kernels} for one in (stages, by_rule))
    assert len(texts) == len(before) < len(stages.kernels)


def steps(*tensors: torch.Tensor) -> list[torch.Tensor]:
    found = [adam(*tensors[k::5]) for k in range(5)]
    return [value for values in zip(*found, strict=True) for value in values]


@pytest.mark.parametrize("rows", [[512] * 5, [512, 100, 33, 700, 3]])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_kernels_that_share_a_launch_go_on_sharing_it(which: int, rows: list[int]) -> None:
    """Lists of tensors of one size, and of several."""
    inputs = empty(*[(n, 1024) for _ in range(4) for n in rows])
    written = [k for k in range(20) if not 5 <= k < 10]
    gm = mutating(steps, inputs, written)
    clock = Preferring(which)
    stages, before = stages_of(gm, tiles=TileTuner(clock)), stages_of(gm)
    assert [k.pointers for k in stages.launched] == [k.pointers for k in before.launched]
    ((name, form),) = clock.preferred.items()
    assert name == "kernel0 and 4 more"
    (kernel,) = stages.launched
    block, warps = form.split(", ")
    assert kernel.warps == int(warps.split()[0]) and kernel.block == int(block)
    assert kernel.source != before.launched[0].source or kernel.warps != before.launched[0].warps


def columns(*some: torch.Tensor) -> list[torch.Tensor]:
    return [one.softmax(-1) for one in some]


def test_kernels_of_one_text_have_one_in_another_form() -> None:
    gm = mutating(columns, empty(*[(1024, 2048)] * 3), [0, 1, 2])
    stages, before = stages_of(gm, tiles=TileTuner(Preferring(0))), stages_of(gm)
    assert len(stages.kernels) == 3 and len(stages.launched) == len(before.launched) == 1
    assert all((kernel.grid, kernel.warps) == (512, 16) for kernel in stages.kernels)
    assert stages.launched[0].grid == 1536 and before.launched[0].grid == 3072
    assert [kernel.name for run in kernel_runs(stages) for kernel in run.kernels] == [stages.launched[0].name]


def test_choices_are_stored() -> None:
    first = compiled(Preferring(0))
    again = Preferring(0)
    assert compiled(again).kernels == first.kernels and not again.asked
    autotuner.cache_clear()  # as another process
    assert compiled(again).kernels == first.kernels and not again.asked


@pytest.mark.parametrize("damage", ["bytes", "text", "format", "candidates", "numbers"])
def test_stored_choices_that_do_not_fit_are_made_again(damage: str, own_folder: Path) -> None:
    compiled(Preferring(0))
    (file,) = own_folder.glob("choice-*.json")
    contents = {
        "text": b"[", "format": json.dumps({"format": 0, "times": {BY_RULE: 1.0}}).encode(),
        "candidates": json.dumps({"format": 1, "times": {BY_RULE: 1.0, "another": 0.5}}).encode(),
        "numbers": json.dumps({"format": 1, "times": {BY_RULE: -1.0}}).encode(),
    }  # fmt: skip
    if damage == "bytes":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        assert storage.write(file.name, contents[damage])
    autotuner.cache_clear()
    clock = Preferring(0)
    compiled(clock)
    assert len(clock.asked) == 1


@needs_triton
def test_times_depend_on_what_is_launched_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Preferring(0)
    for function, shapes in (
        (scaled, (LARGE,)), (scaled, ((4096, 1024),)), (scaled, ((2048, 2049),)), (lambda x: x * 3, (LARGE,)),
    ):  # fmt: skip
        compiled(clock, function, shapes)
    other = Preferring(0)
    other.about = ("another device",)
    compiled(other)
    monkeypatch.setattr(choosing_tiles, "support_digest", lambda: "others")
    compiled(clock)
    # Four million elements in a line are the same kernel in any shape.
    assert len(clock.asked) == 4 and len(other.asked) == 1


class Broken(Preferring):
    """Raise an error instead of returning the reason why a kernel was not timed."""

    def times(self, trials: Sequence[TileTrial], program: Program) -> list[Times | Exception]:
        raise RuntimeError("out of memory")


def failing(which: int) -> Preferring:
    clock = Preferring(which)
    clock.error = RuntimeError("out of memory")
    return clock


@pytest.mark.parametrize("made", [failing, Broken])
def test_a_failure_is_reported_and_leaves_the_rules_candidate(made: Callable[[int], Preferring]) -> None:
    reported: list[str] = []
    stages = compiled(made(0), on_error=lambda where, error: reported.append(f"{where}: {error}"))
    assert reported == ["kernels in other configurations than the rule's: out of memory"]
    assert stages.kernels == compiled(None).kernels


@pytest.mark.parametrize("made", [failing, Broken])
def test_a_failure_is_raised_without_a_handler(made: Callable[[int], Preferring]) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        compiled(made(0))


def test_operands_too_large_for_the_device_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    clock = Preferring(0)
    clock.error = TooLarge("operands take too much")
    for _ in range(2):
        assert compiled(clock).kernels == compiled(None).kernels  # without a handler, a failure would be raised
    reported = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert reported == [
        "kernels and matmuls are not measured where operands take too much; they run by their baselines"
    ]


def test_nothing_is_measured_during_a_capture() -> None:
    clock = Preferring(0)
    clock.free = False
    stages = compiled(clock)
    assert not clock.asked and stages.kernels == compiled(None).kernels and "  not measured" in stages.tiles


def test_kernels_shorter_than_a_launch_are_not_measured() -> None:
    clock = Preferring(0)
    assert compiled(clock, scaled, ((1024, 1024),)).tiles == "" and not clock.asked
    # A part of something large is small.
    compiled(clock, lambda x: x[:, :8] * 2, ((8192, 4096),))
    compiled(clock, lambda x, at: x[at.long()] * 2, ((8192, 4096), (16,)))
    assert not clock.asked


def test_symbolic_sizes_are_not_measured() -> None:
    clock = Preferring(0)
    stages_of(trace_symbolic(scaled, empty(LARGE)), tiles=TileTuner(clock))
    assert not clock.asked


def test_the_largest_are_measured_and_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def several(*some: torch.Tensor) -> list[torch.Tensor]:
        return [one.softmax(-1) for one in some]

    monkeypatch.setattr(TileTuner, "MOST", 2)
    clock = Preferring(0)
    stages = compiled(clock, several, ((2048, 1025), (2048, 2050), (2048, 1600), (4096, 1600)))
    assert [round(trial.moved / 2**20) for trial in clock.asked] == [50, 32]
    assert stages.tiles.count("  not measured") == 2


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_explain_names_what_would_be_measured(mode: str) -> None:
    stages = CudaBackend().explain(trace(scaled, empty(LARGE)), {"mode": mode})
    assert "  unmeasured: by rule; to be measured: 2048, 8 warps; " in stages.tiles
    assert stages.kernels == compiled(None).kernels


def test_other_modes_make_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("candidates are made")

    monkeypatch.setattr(choosing_tiles, "configs_of", never)
    for mode in ("default", "reduce-overhead"):
        stages = CudaBackend().explain(trace(scaled, empty(LARGE)), {"mode": mode})
        assert stages.tiles == "mode asks for no measuring"
    with pytest.raises(AssertionError, match="candidates are made"):
        CudaBackend().explain(trace(scaled, empty(LARGE)), {"mode": "max-autotune"})


def test_kernels_with_bounds_checks_are_timed_without_them() -> None:
    x, at = torch.empty(8192, 1024), torch.zeros(8192, dtype=torch.int64)
    trials = trials_of(trace(lambda x, at: x[at] * 2, [x, at]))
    assert trials
    for trial in trials:
        one = trial.one.kernels[0]
        assert not in_form(trial.one, trial.candidates[0]).launch.kernel.has_checks or one.checks
        assert not choosing_tiles.without_checks(one).checks
