"""Horizontal fusion: launches of equal kernels, their order and text; the numbers are eager's."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import re

import pytest
import torch
from case_selection.sweeps import a_part
from graphs.tracing import mutating, trace
from interpreter_scripts.horizontal import PART, checks
from interpreter_scripts.run import interpreted
from sample_programs.list_steps import EVEN, LISTS, ODD, Lists, adam, chained, clipped
from sample_programs.random_graphs import random_program

from framesmith_backends import CudaBackend
from framesmith_backends.cuda import TritonStages, kernel_runs
from framesmith_backends.ir.expr import Const, Load, Op
from framesmith_backends.ir.kernel import Kernel, Param, RowPass, Store
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Var
from framesmith_backends.render.triton import horizontal as rendering
from framesmith_backends.schedule import horizontal

CUDA = CudaBackend()
Tensor = torch.Tensor
compiles = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton is not installed, or interprets",
)


def explained(one: Lists) -> TritonStages:
    return CUDA.explain(one.graph())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("one", LISTS, ids=lambda one: one.name)
def test_a_step_over_a_list_is_as_few_launches_as_parameters_allow(one: Lists) -> None:
    stages = explained(one)
    filled = sum(0 not in shape for shape in one.shapes)
    assert (len(stages.kernels), len(stages.launched)) == (filled, one.launches)
    assert all(len(kernel.parameters) <= 510 for kernel in stages.launched)
    for kernel in stages.launched:
        compile(kernel.source, "kernel", "exec")
    for run in kernel_runs(stages):
        assert len(run.step.kernels) > len(run.kernels)
        assert {*sum(run.positions, ())} == {*range(len(run.step.buffers))}


def test_scaling_by_one_number_is_one_launch() -> None:
    """Fusion has kernels of what shares a number; each part has registers of its own again, and programs."""
    gradients = [torch.rand(64, 64) for _ in range(6)] + [torch.rand(64) for _ in range(8)]
    stages = CUDA.explain(mutating(clipped, gradients, range(len(gradients))))
    assert len(stages.launched) <= 5
    *_, scaled = stages.launched
    assert len(scaled.pointers) == len(gradients) + 1 and scaled.grid == 6 * 4 + 8


def test_dependent_kernels_are_separate_launches() -> None:
    tensors = [torch.rand(40) for _ in range(5)]
    stages = CUDA.explain(mutating(chained, tensors, range(5)))
    assert len(stages.launched) == len(stages.kernels) == 5


def test_reductions_of_one_shape_are_one_launch_at_the_last() -> None:
    """Second halves wait for first ones, which are of several shapes."""

    def sums(*tensors: Tensor) -> list[Tensor]:
        return [tensor.sum() for tensor in tensors]

    shapes = [(1 << 20,), (1 << 22,), (1 << 20,)]
    stages = CUDA.explain(trace(sums, [torch.rand(shape) for shape in shapes]))
    assert len(stages.kernels) == 6 and len(stages.launched) == 3


def test_lists_of_several_types_are_as_many_launches() -> None:
    def doubled(*tensors: Tensor) -> list[Tensor]:
        return [tensor * 2 for tensor in tensors]

    kinds = (torch.float32, torch.bfloat16, torch.int64)
    stages = CUDA.explain(trace(doubled, [torch.ones(30 + k).to(kinds[k % 3]) for k in range(9)]))
    assert len(stages.kernels) == 9 and len(stages.launched) == 3


def test_numbers_of_the_call_are_shared() -> None:
    from graphs.tracing_symbolic import trace_symbolic

    def scaled(x: Tensor, *others: Tensor) -> list[Tensor]:
        return [other * x.shape[0] for other in others]

    stages = CUDA.explain(trace_symbolic(scaled, [torch.rand(5), torch.rand(5, 3), torch.rand(5, 4)]))
    assert len(stages.launched) == len(stages.kernels)  # grids that change are not joined


def plain_kernel(number: int, read: list[str], written: str, size: int) -> Kernel:
    """One that adds up what it reads, and writes it."""
    loop = Var("x", size)
    position = index.of(loop) if size > 1 else index.ZERO
    value: Const | Op = Const(1.0, "f32")
    for name in read:
        value = Op("add", value, Load(name, (position,), "f32"))
    params = (*(Param(n, "f32", False) for n in dict.fromkeys(read) if n != written), Param(written, "f32", True))
    outer = (loop,) if size > 1 else ()
    return Kernel(
        f"k{number}", params, outer, (), loop if outer else None, (RowPass((), (), (Store(written, position, value),)),)
    )


@pytest.mark.parametrize("seed", range(60))
def test_no_kernel_runs_before_what_it_waits_for(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"b{k}" for k in range(chance.randint(3, 30))]
    shown = {"v": frozenset(("v", "b0", "b1"))}
    kernels = []
    for number in range(chance.randint(2, 60)):
        read = chance.sample([*names, "v"], chance.randint(0, 2))
        kernels.append(plain_kernel(number, read, chance.choice(names), chance.choice((1, 5, 40, 1 << 21))))
    structures = [found for kernel in kernels if (found := horizontal.line_form(kernel))]
    found = horizontal.horizontal_groups(kernels, structures, 7, shown)
    assert sorted(number for one in found for number in one.members) == [*range(len(kernels))]
    position = {number: at for at, one in enumerate(found) for number in one.members}

    def memory(kernel: Kernel, written: bool) -> set[str]:
        used = [param.name for param in kernel.params if param.written or not written]
        return {root for name in used for root in shown.get(name, (name,))}

    for first, a in enumerate(kernels):
        for second in range(first + 1, len(kernels)):
            b = kernels[second]
            if memory(a, True) & memory(b, False) or memory(a, False) & memory(b, True):
                assert position[first] < position[second]
    for one in found:
        members = [kernels[number] for number in one.members]
        assert len({param.name for kernel in members for param in kernel.params}) <= 7


def test_concurrent_kernels_share_no_memory() -> None:
    """Nor does a buffer lie where another one, which is read later, was written by then."""
    sharing = 0
    for seed in range(12):
        stages = CUDA.explain(trace(*random_program(seed, 50)))
        for run in kernel_runs(stages):
            memory = {one.name: (one.offset, one.offset + one.size) for one in run.step.inner}
            items = {item.name: {param.name for param in item.params} & memory.keys() for item in run.step.items}
            used: dict[str, list[int]] = {}
            for at, launch in enumerate(stages.launches[run.step.entry]):
                for name in {one for item in launch.items for one in items[item]}:
                    used.setdefault(name, []).append(at)
            for one, other in itertools.combinations(used, 2):
                is_disjoint = memory[one][1] <= memory[other][0] or memory[other][1] <= memory[one][0]
                assert is_disjoint or used[one][-1] < used[other][0] or used[other][-1] < used[one][0], (
                    seed,
                    one,
                    other,
                )
                sharing += not is_disjoint
    assert sharing > 10


def test_a_single_element_is_a_line_of_one() -> None:
    one, many, other = (
        plain_kernel(k, read, "y", size) for k, (read, size) in enumerate(((["a"], 1), (["a"], 9), ([], 1)))
    )
    structures = [horizontal.line_form(kernel) for kernel in (one, many, other)]
    assert structures[0] and structures[1] and structures[2]
    assert structures[0].key == structures[1].key != structures[2].key
    assert structures[0].shared_with(structures[1]) is structures[1] is structures[1].shared_with(structures[0])


@compiles
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("shapes", "widths"), [(EVEN, {4}), (ODD, {1, 4})], ids=["even", "odd"])
def test_whole_vectors_are_read_and_written(shapes: list[tuple[int, ...]], widths: set[int], capability: int) -> None:
    """Of odd sizes all blocks but the last of each tensor are; and registers are those of one kernel."""
    from framesmith_backends.launch.cuda.triton_jit import compiled

    (kernel,) = explained(Lists("", adam, 4, (0, 2, 3), shapes, 1)).launched
    text = compiled(kernel, capability).asm["ptx"]
    for access in ("ld", "st"):
        found = re.findall(rf"{access}\.global(?:\.v(\d))?\.b32", text)
        assert {int(width or 1) for width in found} == widths


@compiles
def test_selections_stay_branches() -> None:
    """LLVM read the addresses of all buffers and chose among them one by one: 236 registers."""
    from framesmith_backends.launch.cuda.triton_jit import compiled

    kernel = explained(Lists("", adam, 4, (0, 2, 3), [(4096,)] * 100, 1)).launched[0]
    text = compiled(kernel, 90).asm["ptx"]
    assert len(kernel.pointers) == 400 and text.count("selp") < 50 < text.count("bra")


@compiles
def test_a_set_is_compiled_and_launched_natively() -> None:
    from launch.cuda.test_native import StandIn, entries, never

    stages = explained(Lists("", adam, 4, (0, 2, 3), [(40,), (3,), (1100,)], 1))
    ((run,), stand_in) = (kernel_runs(stages), StandIn())
    call = entries(stages, stand_in.functions, never)[run.step.entry]
    buffers = [torch.zeros(1100) for _ in run.step.buffers]
    stand_in.words = len(run.positions[0]) + 2
    call(*buffers)
    ((name, grid, threads, words),) = stand_in.launches
    assert (name, grid, threads) == (run.kernels[0].name, 4, 128)
    assert words == [*(buffers[at].data_ptr() for at in run.positions[0]), 0, 0] and len(words) == 14


def test_more_programs_than_a_launch_has_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MOST_PROGRAMS", 3)
    stages = explained(Lists("", adam, 4, (0, 2, 3), [(1024,)] * 4, 1))
    assert len(stages.launched) == 4


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_interpreted_numbers_equal_eager() -> None:
    assert interpreted("horizontal").count("ok ") == len(a_part(checks(), PART))


def test_offsets_beyond_32_bits_are_no_line() -> None:
    """Kernels of few points that lie far out in large tensors."""
    start = (1 << 31) - 648
    tensors = [torch.empty(start + 4096, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    graph = trace(lambda x, y: (x[start:] * 2, y[start:] * 2), tensors)
    for kernel in CudaBackend().explain(graph).launched:
        assert "tl.int64" in kernel.source
