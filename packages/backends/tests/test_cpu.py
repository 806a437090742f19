"""The cpu backend against eager: values, dtypes, strides, on the samples and on awkward inputs."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakValueDictionary

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace
from sample_programs.samples import SAMPLES, Sample

from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm import engine as native

CPU = CpuBackend()


def compare(found: tuple[torch.Tensor, ...], wanted: object, tolerance: float) -> None:
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_sample_equals_eager(sample: Sample) -> None:
    inputs = sample.inputs()
    call = CPU.compile(trace(sample.function, inputs), inputs)
    compare(call(list(inputs)), sample.function(*inputs), sample.tolerance)
    again = [t.clone() for t in inputs]
    compare(call(list(again)), sample.function(*again), sample.tolerance)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 127, 129, 255])
def test_every_remainder_of_the_lanes(size: int) -> None:
    x, y = torch.randn(3, size), torch.randn(size)
    for function in (lambda a, b: a * b + 1, lambda a, b: torch.softmax(a + b, -1), lambda a, b: (a * b).sum(0)):
        call = CPU.compile(trace(function, [x, y]), [x, y])
        compare(call([x, y]), function(x, y), 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", [5, 7, 9, 13, 17, 21, 33, 41])
def test_reads_under_conditions_in_an_incomplete_block(columns: int) -> None:
    x = torch.randn(4, columns)
    for function in (
        lambda a: F.pad(a, (1, 2, 3, 0)) * 2,
        lambda a: torch.cat([a, a[:, :2] + 1], 1) * 2,
        lambda a: a.tril(1) + 1,
    ):
        compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 0)


def test_special_values() -> None:
    values = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 3e38, -3e38, 1.0])
    x, y = torch.meshgrid(values, values, indexing="ij")
    x, y = x.contiguous(), y.contiguous()

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            a + b, a * b, a / b, torch.maximum(a, b), torch.minimum(a, b), F.relu(a), a.clamp(-1, 1), a < b, a == b,
            a.neg(), a.abs(), a.sqrt(), torch.where(a > b, a, b), a.isnan(), a.floor(), a.round(), a.sign(),
        )  # fmt: skip

    call = CPU.compile(trace(function, [x, y]), [x, y])
    # Rounded from double precision: eager's own square root is not always the nearest float.
    for found, exact in zip(call([x, y]), function(x.double(), y.double())):
        wanted = exact.float() if exact.dtype.is_floating_point else exact
        assert torch.equal(found.isnan(), wanted.isnan())
        keep = ~wanted.isnan()
        assert torch.equal(found[keep], wanted[keep])
        if wanted.dtype.is_floating_point:
            assert torch.equal(found[keep].signbit(), wanted[keep].signbit())


def test_nan_in_a_reduction() -> None:
    x = torch.randn(4, 100)
    x[1, 37] = float("nan")
    x[2, 99] = float("nan")
    function = lambda a: (a.amax(1), a.amin(1), a.sum(1), torch.softmax(a, 1))  # noqa: E731
    compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_wrap(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 5, 100], dtype=dtype)
    function = lambda a: (a + a, a * 3, a * a, a - 7, a.sum(), a // 3, a % 7, a & 12, ~a)  # noqa: E731
    compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 0)


def test_type_promotion() -> None:
    operands = {
        "f32": torch.randn(5), "f16": torch.randn(5).half(), "bf16": torch.randn(5).bfloat16(),
        "i64": torch.arange(5), "u8": torch.arange(5, dtype=torch.uint8), "b": torch.arange(5) % 2 == 0,
        "zero f64": torch.tensor(1.5, dtype=torch.float64), "zero i64": torch.tensor(3),
    }  # fmt: skip

    def pairs(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, *rest = values
        found = [first + 2, first * 0.5, first > 1.5, -first.float(), first.sum(), first.to(torch.bool)]
        for other in rest:
            found += [first + other, other * first, first / other, first > other, torch.where(first > 0, first, other)]
        return tuple(found)

    values = list(operands.values())
    for k in range(len(values)):
        rotated = values[k:] + values[:k]
        compare(CPU.compile(trace(pairs, rotated), rotated)(list(rotated)), pairs(*rotated), 1e-2)


def test_mutations_come_last() -> None:
    buffer, x = torch.zeros(5), torch.randn(5)

    def function(b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = b + y
        b.copy_(out * 2)
        return out

    gm = trace(function, [buffer.clone(), x])
    state = buffer.clone()
    (out,) = CPU.compile(gm, [state, x])([state, x])
    assert torch.equal(out, x)
    assert torch.equal(state, x * 2)


def test_random_numbers_equal_eager() -> None:
    x = torch.randn(100)
    function = lambda a: F.dropout(a * 2, 0.5, True) + torch.rand_like(a)  # noqa: E731
    call = CPU.compile(trace(function, [x]), [x])
    torch.manual_seed(3)
    found = call([x])
    torch.manual_seed(3)
    compare(found, function(x), 1e-6)


def test_sums_are_as_accurate_as_eager() -> None:
    torch.manual_seed(0)
    for shape, dims in (((1, 1 << 20), 1), ((1 << 16, 24), 0), ((1 << 20,), 0), ((64, 300, 100), (1, 2))):
        x = torch.rand(shape)
        function = lambda a, d=dims: a.sum(d)  # noqa: E731
        (found,) = CPU.compile(trace(function, [x]), [x])([x])
        exact = x.double().sum(dims)
        ours = ((found - exact) / exact).abs().max()
        eager = ((x.sum(dims) - exact) / exact).abs().max()
        assert ours <= max(4 * float(eager), 5e-7)


def test_strided_and_offset_inputs() -> None:
    base = torch.randn(20, 30)
    x = base[3:15:2, 5:].t()
    function = lambda a: (a * 2, a.sum(0), torch.softmax(a, -1))  # noqa: E731
    compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 1e-5)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float16])
@pytest.mark.parametrize("step", [2, 3, 4, 7, 8, 9, -1])
def test_every_so_many_elements(step: int, dtype: torch.dtype) -> None:
    for columns in (16, 32, 33, 64, 100):
        x = torch.arange(3 * columns * abs(step)).view(3, -1).to(dtype)
        function = (lambda a: a.flip(1) + 1) if step < 0 else (lambda a: a[:, step - 1 :: step] + a[:, ::step])
        compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 0)


@pytest.mark.sampled(42)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(64, 64), (128, 96), (33, 130), (1024, 48), (16, 17), (100, 100), (2, 192, 80)])
def test_reads_across_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Whole tiles are transposed in registers, the rest is gathered; a copy is a kernel that others read along rows."""
    x = torch.arange(math.prod(shape)).view(shape).to(dtype)
    y = torch.arange(math.prod(shape)).view(*shape[:-2], shape[-1], shape[-2]).to(dtype)
    for function in (
        lambda a, b: a.mT + b,
        lambda a, b: a.mT.contiguous() * 2 + b,
        lambda a, b: (a.mT.contiguous().float().cumsum(-1), a.mT.contiguous().float().sum(-1) + 1),
        lambda a, b: a.flip(-1).mT + b,
        lambda a, b: (a.mT + b, a + b.mT),
    ):
        compare(CPU.compile(trace(function, [x, y]), [x, y])([x, y]), function(x, y), 1e-5)


def test_how_rows_are_read() -> None:
    """By vectors and shuffles; nothing is left to ATen."""
    x, y = torch.randn(128, 96), torch.randn(96, 128)
    for function in (lambda a, b: a.t() + b, lambda a, b: (a.t().contiguous(), a[:, ::2] + 1, b.flip(1) + 1)):
        stages = CPU.explain(trace(function, [x, y]))
        assert not stages.lowering.notes
        assert "shufflevector" in stages.llvm and "masked.gather" not in stages.llvm


def test_softmax_of_a_transposed_tensor_reads_it_across_rows_once() -> None:
    x = torch.randn(96, 64)
    for function in (lambda a: torch.softmax(a.t(), 1), lambda a: torch.log_softmax((a * 2).t(), 0)):
        gm = trace(function, [x])
        assert len(CPU.explain(gm).plan.kernels) == 2
        compare(CPU.compile(gm, [x])([x]), function(x), 1e-5)
    small = trace(lambda a: torch.softmax(a.t(), 1), [x[:8, :8].clone()])
    assert len(CPU.explain(small).plan.kernels) == 1


@pytest.mark.parametrize("rows", [1000, 2100])
def test_long_columns_are_walked_in_tiles(rows: int) -> None:
    """Their elements lie in more pages than the processor keeps addresses of: nothing is kept for each row."""
    x = torch.randn(rows, 1100)
    for function in (lambda a: torch.softmax(a, 0), lambda a: torch.softmax(a.view(1, rows, 1100), 1)):
        gm = trace(function, [x])
        assert ("scratch" in CPU.explain(gm).text()) == (rows == 1000)
        compare(CPU.compile(gm, [x])([x]), function(x), 1e-5)


@pytest.mark.parametrize(("shape", "dim"), [((40, 50257), 1), ((2400, 512), 0), ((40, 4000), 1)])
def test_long_rows_are_kept_outside_of_the_stack(shape: tuple[int, int], dim: int) -> None:
    x = torch.randn(shape)
    gm = trace(lambda a: torch.softmax(a, dim), [x])
    stages = CPU.explain(gm)
    assert "scratch" in stages.text()
    assert ("call ptr @malloc" in stages.llvm) == (shape != (40, 4000)) == ("call void @free" in stages.llvm)
    compare(CPU.compile(gm, [x])([x]), torch.softmax(x, dim), 1e-5)


def test_reads_across_long_rows_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times a prime, with lanes that divide it: one tile of all points would be larger than the stack."""
    known = native.machine()
    small = replace(known, target=replace(known.target, bytes=16), modules=WeakValueDictionary())
    monkeypatch.setattr(native, "machine", lambda: small)
    x, y = torch.randn(800_024, 32), torch.randn(32, 800_024)
    compare(CPU.compile(trace(lambda a, b: a.t() + b, [x, y]), [x, y])([x, y]), x.t() + y, 0)


def test_images_with_their_channels_moved() -> None:
    x = torch.randn(3, 20, 24, 32)
    for function in (
        lambda a: a.contiguous(memory_format=torch.channels_last),
        lambda a: a.permute(0, 2, 3, 1) + torch.arange(20.0),
        lambda a: a.permute(2, 0, 3, 1).contiguous(),
        lambda a: torch.softmax(a.transpose(1, 3).contiguous(), -1),
    ):
        compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 1e-5)


EXTREMES: dict[str, Callable[[torch.Tensor], object]] = {
    "rows": lambda x: x.argmax(1), "columns": lambda x: x.argmin(0, keepdim=True), "all": lambda x: x.argmax(),
    "largest": lambda x: torch.max(x, 1), "least": lambda x: torch.min(x, 0, keepdim=True),
    "middle": lambda x: x.view(4, 3, -1).argmin(1), "transposed": lambda x: x.t().argmax(1),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("name", EXTREMES)
def test_indices_of_extremes(name: str, dtype: torch.dtype) -> None:
    """Among equal ones the first; a NaN before all numbers."""
    x = torch.randint(0, 5, (12, 70)).to(dtype)
    inputs = [x]
    if dtype.is_floating_point:
        special = x.clone()
        special[3, 5] = special[7, 1] = special[7, 69] = math.nan
        special[9], special[:, 3] = -math.inf, math.inf
        inputs.append(special)
    for one in inputs:
        function = lambda a: tuple(f) if isinstance(f := EXTREMES[name](a), tuple) else f  # noqa: E731
        compare(CPU.compile(trace(function, [one]), [one])([one]), function(one), 0)


@pytest.mark.parametrize("start", [0, 1], ids=["first", "last"])
def test_every_other_element_up_to_the_end_of_memory(start: int) -> None:
    """Pages before and behind the elements cannot be read."""
    libc, page, count = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, mmap.PAGESIZE // 4
    memory = mmap.mmap(-1, 3 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = torch.frombuffer(memory, dtype=torch.float32, offset=page, count=count)
    middle.copy_(torch.arange(count))
    x = middle[start::2]
    call = CPU.compile(trace(lambda a: (a + 1, a.flip(0) + 1), [x]), [x])
    try:
        for edge in (address, address + 2 * page):
            assert libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0) == 0
        up, down = call([x])
    finally:
        for edge in (address, address + 2 * page):
            libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
    assert torch.equal(up, x + 1) and torch.equal(down, x.flip(0) + 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [(2, 3), (5, 7), (40, 30), (1, 6)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(-1).flip(0),
        lambda x: (x * 2).reshape(-1).flip(0).reshape(x.shape[1], -1).flip(1),
        lambda x: torch.cat([x.reshape(-1).flip(0), x.reshape(-1)]).flip(0),
        lambda x: torch.nn.functional.pad(x.reshape(-1).flip(0), (2, 3)),
        lambda x: x.reshape(-1).flip(0).roll(2).cumsum(0),
        lambda x: x.flatten().flip(0).sum(),
    ],
)
def test_reversed_reads_of_rows_of_another_shape(
    function: Callable[[torch.Tensor], torch.Tensor], size: tuple[int, int]
) -> None:
    """Positions count down, and are decomposed by divisions."""
    x = torch.arange(1.0, 1 + size[0] * size[1]).view(size).t()
    compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 1e-5)


def test_large_arguments_of_sine() -> None:
    x = torch.tensor([1e5, 1e10, -3e38, 12345.678, float("inf")] * 9)
    function = lambda a: (a.sin(), a.cos())  # noqa: E731
    compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 1e-6)


def test_threads_give_the_same_bits() -> None:
    x = torch.randn(512, 600)
    function = lambda a: (torch.softmax(a, -1), a.sum(0), a.sum(), (a * 2).exp())  # noqa: E731
    call = CPU.compile(trace(function, [x]), [x])
    torch.set_num_threads(1)
    one = call([x])
    torch.set_num_threads(2)
    for a, b in zip(one, call([x])):
        assert torch.equal(a, b)


def test_the_list_is_emptied() -> None:
    x = torch.randn(4)
    args = [x]
    CPU.compile(trace(lambda a: a + 1, [x]), [x])(args)
    assert args == []


def test_outputs_may_be_inputs_constants_and_repeats() -> None:
    x = torch.randn(4)
    gm = trace(lambda a: (a, a + 1), [x])
    output = next(n for n in gm.graph.nodes if n.op == "output")
    first, second = output.args[0]
    output.args = ((first, second, None, second),)
    a, b, nothing, c = CPU.compile(gm, [x])([x])
    assert a is x
    assert nothing is None
    assert b is c


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.select_scatter(x, x[1].sort().values, 0, 0),
        lambda x: torch.slice_scatter(x, x[1:].sort().values, 0, 0, 2),
        lambda x: torch.diagonal_scatter(x, x[0].sort().values),
        lambda x: torch.as_strided_scatter(x, x[0].sort().values, (3,), (1,)),
        lambda x: x.sort().values.index_put((torch.tensor([0]),), x[1]),
        lambda x: x.cumsum(0).masked_scatter(x > 0, x),
    ],
)
def test_results_of_torch_are_no_views(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(3, 3)
    call = CPU.compile(trace(function, [x]), [x])
    (result,) = call([x])
    assert not result._is_view()
    torch.testing.assert_close(result, function(x))


def test_not_a_tensor_is_an_error() -> None:
    x = torch.randn(4)
    call = CPU.compile(trace(lambda a: a + 1, [x]), [x])
    with pytest.raises(TypeError, match=r"not a dense torch.Tensor"):
        call([3])


def test_unknown_role_and_option() -> None:
    x = torch.randn(4)
    gm = trace(lambda a: a + 1, [x])
    with pytest.raises(ValueError, match="did you mean 'inference'"):
        CPU.compile(gm, [x], "inferenc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'numerics'"):
        CPU.compile(gm, [x], options={"numeric": "strict"})
    with pytest.raises(ValueError, match="did you mean 'strict'"):
        CPU.compile(gm, [x], options={"numerics": "strikt"})


def test_strict_numerics_do_not_fuse() -> None:
    x, y, z = (torch.randn(1000) for _ in range(3))
    function = lambda a, b, c: a * b + c  # noqa: E731
    gm = trace(function, [x, y, z])
    (found,) = CPU.compile(gm, [x, y, z], options={"numerics": "strict"})([x, y, z])
    assert torch.equal(found, function(x, y, z))


def test_explain_prints_every_stage() -> None:
    x = torch.randn(4, 8)
    text = CPU.explain(trace(lambda a: torch.softmax(a @ a.t(), -1), [x])).text()
    for heading in ("# lowered", "# ATen calls", "# kernels", "# plan", "# launcher", "# LLVM"):
        assert heading in text
    assert "mm_default: no rule" in text


def test_a_long_chain_equals_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = (x * x).sin() * 0.5 + x.tanh() * 0.3
        return x

    x = torch.randn(70)
    compare(CPU.compile(trace(function, [x]), [x])([x]), function(x), 1e-4)


def test_threads_may_compile_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    inputs = [torch.randn(16, 24 + k % 3) for k in range(6)]
    graphs = [trace(lambda a: torch.softmax(F.gelu(a), -1), [x]) for x in inputs]
    with ThreadPoolExecutor(3) as pool:
        calls = list(pool.map(lambda pair: CPU.compile(*pair), zip(graphs, [[x] for x in inputs])))
        results = list(pool.map(lambda pair: pair[0]([pair[1]]), zip(calls, inputs)))
    for (found,), x in zip(results, inputs):
        torch.testing.assert_close(found, torch.softmax(F.gelu(x), -1), rtol=1e-5, atol=1e-5)


FAR = [
    3e9,
    -3e9,
    1.0,
    4e4,
    float("inf"),
    float("nan"),
    1e20,
    -1e20,
    300.0,
    -1.0,
    2.0**31,
    2.0**32 + 5,
    -(2.0**63),
    -129.7,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_numbers_out_of_range_convert_as_in_eager(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor(FAR, dtype=torch.float64).to(source).repeat(3)

    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        constant = torch.full((3,), float("nan"), dtype=source).to(target) + torch.full((3,), 3e9).to(target)
        return a.to(target), constant, torch.scalar_tensor(-3e9).to(target)

    call = CPU.compile(trace(function, [x]), [x])
    for found, wanted in zip(call([x]), function(x)):
        assert torch.equal(found, wanted)


def test_results_exact_in_eager_mode_are_exact() -> None:
    a = torch.randn(1000)
    b, ones = a.clone(), torch.ones(1000)

    def function(a: torch.Tensor, b: torch.Tensor, ones: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.sqrt(a * a - b * b), (a * 0.1 - b * 0.1) / ones, (a * b * -1 + a * b).sum()

    call = CPU.compile(trace(function, [a, b, ones]), [a, b, ones])
    for found in call([a, b, ones]):
        assert torch.equal(found, torch.zeros_like(found))
