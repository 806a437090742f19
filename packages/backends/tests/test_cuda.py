"""The cuda backend without a GPU: kernels compile to cubins, and the interpreter gives eager's numbers."""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace

import pytest
import torch
from case_selection.gpus import with_capabilities
from case_selection.sweeps import CASES_PART, LONG, PROGRAMS_PART, a_part
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from interpreter_scripts import joined
from interpreter_scripts.attempts import some
from interpreter_scripts.run import interpreted
from sample_programs import row_column
from sample_programs.samples import BY_NAME, SAMPLES, Sample, interpreted_samples
from test_symbolic import PROGRAMS, Program, compilations

from framesmith_backends import CudaBackend
from framesmith_backends.ir.symbolic.size import hint
from framesmith_backends.render.triton.kernel import TritonKernel

CUDA = CudaBackend()
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
#: Without FRAMESMITH_LONG these of the symbolic programs are compiled: each has a construct of its own.
SYMBOLIC = ("softmax", "halves", "cat", "counts of numbers")
COMPILED = ("chain", "softmax", "layer norm", "sums", "cat", "bf16", "double functions")


def kernels_of(sample: Sample) -> tuple[TritonKernel, ...]:
    return CUDA.explain(trace(sample.function, sample.inputs())).kernels


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_every_sample_renders(sample: Sample) -> None:
    gm = trace(sample.function, sample.inputs())
    stages = CUDA.explain(gm)
    assert len(stages.kernels) == len(stages.plan.kernels) >= 1
    for kernel in stages.kernels:
        compile(kernel.source, "kernel", "exec")
    assert "tl.store(" in stages.text()
    assert "scratch" not in stages.text()
    for kernel, made in zip(stages.plan.kernels, stages.kernels, strict=True):
        assert ("tl.atomic_add(" in made.source) == kernel.updates  # threads come in no order


@pytest.mark.parametrize(("shape", "count"), [((64, 512), 1), ((4, 70_000), 2), ((1, 1 << 20), 2)])
def test_rows_are_split_where_that_takes_less_time_than_a_launch(shape: tuple[int, int], count: int) -> None:
    assert len(CUDA.explain(trace(lambda x: x.exp().sum(-1), [torch.randn(shape)])).kernels) == count


@pytest.mark.sampled(2)
@needs_triton
@pytest.mark.parametrize(("name", "capability"), with_capabilities(COMPILED))
def test_kernels_compile_to_cubins(name: str, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.cubins import cubin

    for kernel in kernels_of(BY_NAME[name]):
        assert cubin(kernel, False, capability).code[:4] == b"\x7fELF"


@needs_triton
def test_equal_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from framesmith_backends.launch.cuda import cubins

    def stacked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.softmax(x @ w, -1)
        return x.sin()

    kernels = CUDA.explain(trace(stacked, [torch.randn(8, 16), torch.randn(16, 16)])).kernels
    assert len(kernels) == 3 and len({kernel.name for kernel in kernels}) == 3
    made: list[str] = []

    def compiled(kernel: TritonKernel, capability: int, aligned: bool, anywhere: bool) -> SimpleNamespace:
        made.append(kernel.name)
        return SimpleNamespace(
            metadata=SimpleNamespace(name=kernel.name, shared=0), asm={"cubin": kernel.name.encode()}
        )

    monkeypatch.setattr(cubins, "compiled", compiled)
    monkeypatch.setattr(cubins.storage, "read", lambda name: None)
    monkeypatch.setattr(cubins.storage, "write", lambda name, code: None)
    found = cubins.cubins([(kernel, False) for kernel in kernels], 90)
    assert sorted(made) == [kernels[0].name, kernels[2].name]
    assert found[0] == found[1] != found[2]


def symbolic_kernels(program: Program, a: int = 3, b: int = 5) -> list[TritonKernel]:
    stages = CUDA.explain(trace_symbolic(program.function, program.inputs(a, b)))
    return [form for kernel in stages.kernels for form in kernel.versions]


@needs_triton
@pytest.mark.parametrize(
    ("program", "capability"),
    with_capabilities(p for p in PROGRAMS if LONG or p.name in SYMBOLIC),
    ids=lambda one: getattr(one, "name", None),
)
def test_symbolic_kernels_compile_to_cubins(program: Program, capability: int) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.cubins import cubin

    for kernel in symbolic_kernels(program):
        assert cubin(kernel, False, capability).code[:4] == b"\x7fELF"


@pytest.mark.sampled(16)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_every_symbolic_program_renders(program: Program) -> None:
    kernels = symbolic_kernels(program)
    assert kernels or program.name in ("matmuls", "sorted")
    for kernel in kernels:
        compile(kernel.source, "kernel", "exec")
        assert hint(kernel.grid) >= 1


@needs_triton
def test_vectors_are_read_where_sizes_are_aligned() -> None:
    """With sizes divisible by 16 the kernel for any size reads as wide as one for these sizes alone."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted functions do not compile")
    from framesmith_backends.launch.cuda.triton_jit import compiled

    (kernel,) = symbolic_kernels(next(p for p in PROGRAMS if p.name == "pointwise"), 32, 64)
    assert len(kernel.aligned) == 2
    assert "ld.global.v4.b32" in compiled(kernel, 90, True).asm["ptx"]
    assert "ld.global.v4.b32" not in compiled(kernel, 90, False).asm["ptx"]
    (odd,) = symbolic_kernels(next(p for p in PROGRAMS if p.name == "pointwise"), 3, 64)
    assert len(odd.aligned) == 1


def test_a_short_row_that_grows_has_a_second_form() -> None:
    whole, longer = symbolic_kernels(next(p for p in PROGRAMS if p.name == "softmax of gaps"))
    assert "for " not in whole.source
    assert "for " in longer.source
    assert whole.block < longer.block


@needs_triton
def test_interpreted_numbers_equal_eager() -> None:
    assert interpreted("samples").count("ok ") == len(interpreted_samples())


@needs_triton
def test_interpreted_indices_out_of_range_raise() -> None:
    assert interpreted("samples", "checks").count("ok ") == 4


@needs_triton
def test_interpreted_passes_that_are_joined_equal_eager() -> None:
    assert interpreted("joined").count("ok ") == len(some(joined.attempts()))


@needs_triton
def test_interpreted_rows_and_columns_equal_eager() -> None:
    assert interpreted("samples", "row_column").count("ok ") == (
        2 * len(row_column.CASES) + 3 if LONG else len(a_part(range(len(row_column.CASES) + 1), CASES_PART))
    )


@needs_triton
def test_interpreted_symbolic_kernels_equal_eager() -> None:
    assert interpreted("samples", "symbolic").count("ok ") == len(a_part(PROGRAMS, PROGRAMS_PART))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_on_a_real_device(sample: Sample) -> None:
    inputs = [t.cuda() for t in sample.inputs()]
    with torch.device("cuda"):
        wanted = sample.function(*inputs)
        found = CUDA.compile(trace(sample.function, inputs), inputs)(list(inputs))
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    for one, other in zip(found, wanted):
        assert one.stride() == other.stride()
        tolerance = max(sample.tolerance, 1e-4)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_of_changing_sizes_on_a_real_device(program: Program) -> None:
    assert 1 <= compilations(program, CUDA, device="cuda") <= program.compilations


def test_without_a_device_it_says_so() -> None:
    x = torch.randn(3)
    gm = trace(lambda a: a + 1, [x])
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("there is a device")
    assert CUDA.why_not(gm) is not None
    with pytest.raises(RuntimeError, match="cannot run here"):
        CUDA.compile(gm, [x])
