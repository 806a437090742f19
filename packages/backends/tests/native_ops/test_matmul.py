"""The native matmul against one in double precision: sizes, layouts, factors, special values, threads, batches."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest
import torch
from case_selection.sweeps import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends.launch.llvm.engine import machine, machine_code
from framesmith_backends.native_ops.matmul.blocking import LONGEST_CHAIN, Blocking, blocking
from framesmith_backends.native_ops.matmul.kernel import render_matmuls
from framesmith_backends.native_ops.matmul.operator import NATIVE_MATMUL, OPERATOR, NativeMatmul
from framesmith_backends.render.llvm.builder import Builder, Value
from framesmith_backends.target import Processor

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([61, 64, 97, 128, 130, 251, 385, 400, 515]))
STEPS = st.sampled_from(["n", "t", "wide", "sparse"])


def matrix(rows: int, columns: int, layout: str) -> torch.Tensor:
    """A random matrix: contiguous, transposed, with a large row stride, or with nothing contiguous."""
    if layout == "t":
        return torch.randn(columns, rows).t()
    if layout == "wide":
        return torch.randn(rows, columns + 5)[:, 2 : columns + 2]
    if layout == "sparse":
        return torch.randn(rows, 3, columns, 2)[:, 1, :, 1]
    return torch.randn(rows, columns)


def assert_as_exact(found: torch.Tensor, wanted: torch.Tensor, size: torch.Tensor, inner: int) -> None:
    """Within rounding of the sum's terms: `size` is the sum of their magnitudes."""
    bound = size * (2.0**-24) * (inner + 4) ** 0.5 * 4 + 1e-30
    assert bool(((found.double() - wanted).abs() <= bound).all()), ((found - wanted).abs() / bound).max()


@settings(max_examples=examples(100), deadline=None)
@given(
    SIZES,
    SIZES,
    SIZES,
    STEPS,
    STEPS,
    st.sampled_from([1.0, 0.5, -2.0]),
    st.sampled_from([0.0, 1.0, 0.25]),
    st.booleans(),
)
def test_matmuls_are_right(
    m: int, n: int, k: int, left: str, right: str, alpha: float, beta: float, biased: bool
) -> None:
    torch.set_num_threads(1)
    a, b = matrix(m, k, left), matrix(k, n, right)
    bias = torch.randn(n) if biased else None
    frame = torch.full((m + 2, n + 3), float("nan"))
    c = frame[1 : m + 1, 1 : n + 1]
    if beta:
        c.copy_(torch.randn(m, n))
    before = torch.zeros(m, n).double() if beta == 0 else c.double()
    wanted = alpha * (a.double() @ b.double()) + beta * before + (0 if bias is None else bias.double())
    size = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(beta) * before.abs() + wanted.abs()
    NATIVE_MATMUL(a, b, c, bias, alpha, beta)
    assert_as_exact(c, wanted, size + (0 if bias is None else bias.double().abs()), k)
    c.fill_(float("nan"))
    assert bool(frame.isnan().all()), "written outside"


@pytest.mark.parametrize("shape", [(64, 256, 256), (130, 700, 90), (5, 1024, 513), (1, 700, 300), (300, 513, 17)])
@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
def test_the_result_is_the_same_for_any_number_of_threads(shape: tuple[int, int, int], form: str) -> None:
    m, k, n = shape
    a, b = matrix(m, k, form[0]), matrix(k, n, form[1])
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append(NATIVE_MATMUL(a, b, torch.empty(m, n)))
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("shape", [(64, 256, 256), (128, 1000, 200), (1, 4096, 64), (8, 1024, 64), (3, 2000, 50)])
def test_the_error_is_at_most_half_again_eagers(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    m, k, n = shape
    for form in ("nn", "nt", "tn"):
        a, b = matrix(m, k, form[0]), matrix(k, n, form[1])
        exact = a.double() @ b.double()
        ours = (NATIVE_MATMUL(a, b, torch.empty(m, n)) - exact).square().mean()
        assert ours <= 1.5**2 * (a @ b - exact).square().mean()


@pytest.mark.parametrize("m", [1, 3, 20])
@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_special_values_stay_in_their_rows_and_columns(m: int, form: str, value: float) -> None:
    a, b = matrix(m, 35, form[0]), matrix(35, 45, form[1])
    a[m - 1, 34] = value
    b[0, 44] = value
    found, wanted = NATIVE_MATMUL(a, b, torch.empty(m, 45)), a @ b
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_batches() -> None:
    for shape in ((16, 128, 64, 128), (3, 5, 7, 9), (0, 3, 3, 3), (2, 70, 0, 40)):
        batches, m, k, n = shape
        a, b = torch.randn(batches, m, k), torch.randn(batches, n, k).transpose(1, 2)
        found = NATIVE_MATMUL(a, b, torch.full((batches, m, n), float("nan")))
        torch.testing.assert_close(found, torch.bmm(a, b), rtol=1e-4, atol=1e-4)


def test_operands_may_share_memory_and_repeat() -> None:
    a = torch.randn(90, 90)
    torch.testing.assert_close(OPERATOR(a, a.t(), a[0]), torch.addmm(a[0], a, a.t()), rtol=1e-4, atol=1e-4)
    row = torch.randn(1, 70).expand(50, 70)
    torch.testing.assert_close(OPERATOR(row, row.t(), None), row @ row.t(), rtol=1e-4, atol=1e-4)


def test_many_python_threads_at_once() -> None:
    a, b = torch.randn(100, 600), torch.randn(600, 130)
    wanted = NATIVE_MATMUL(a, b, torch.empty(100, 130))
    wrong: list[int] = []

    def work(rank: int) -> None:
        found = [NATIVE_MATMUL(a, b, torch.empty(100, 130)) for _ in range(20)]
        wrong.extend(rank for one in found if not torch.equal(one, wanted))

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@functools.cache
def doubled() -> NativeMatmul:
    def element(b: Builder, value: Value) -> Value:
        return b.mul(b.select(b.compare("ogt", value, 0.0), value, b.number(0.0, value)), 2.0)

    return NativeMatmul(lambda target: render_matmuls(target, element, Blocking(target.float_lanes, (4, 1), 2, 64, 64)))


@pytest.mark.parametrize("shape", [(1, 100, 30), (8, 40, 64), (37, 200, 150), (5, 0, 6)])
@pytest.mark.parametrize("form", ["nn", "nt"])
def test_an_element_function_sees_finished_sums(shape: tuple[int, int, int], form: str) -> None:
    m, k, n = shape
    a, b, bias = matrix(m, k, form[0]), matrix(k, n, form[1]), torch.randn(n)
    found = doubled()(a, b, torch.empty(m, n), bias)
    torch.testing.assert_close(found, torch.addmm(bias, a, b).relu() * 2, rtol=1e-4, atol=1e-4)


def test_narrow_vectors_give_right_matmuls() -> None:
    host = machine().target
    for size in (16, 32):
        if size > host.bytes:
            continue
        narrow = Processor(host.name, host.features, size, host.converts_float16)
        matmul = NativeMatmul(lambda _, narrow=narrow: render_matmuls(narrow))  # type: ignore[misc]
        for m, k, n in ((70, 130, 90), (4, 70, 33), (1, 19, 5)):
            for form in ("nn", "nt", "tn"):
                a, b = matrix(m, k, form[0]), matrix(k, n, form[1])
                torch.testing.assert_close(matmul(a, b, torch.empty(m, n)), a @ b, rtol=1e-4, atol=1e-4)


def test_blocks_fit_the_caches() -> None:
    for size in (16, 32, 64):
        for first, second in ((32 << 10, 512 << 10), (48 << 10, 2 << 20), (64 << 10, 4 << 20), (16 << 10, 128 << 10)):
            cut = blocking(Processor("generic", "", size, False), first, second)
            assert cut.columns % cut.width == 0
            assert cut.depth * cut.rows[0] * 4 <= max(first, 128 * 14 * 4)
            assert cut.depth <= LONGEST_CHAIN


def test_machine_code_is_kept_and_damage_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = render_matmuls(machine().target)
    first = machine_code("matmul", text)
    (file,) = (tmp_path / "framesmith").iterdir()
    inode = file.stat().st_ino
    assert machine_code("matmul", text) == first and file.stat().st_ino == inode
    file.write_bytes(file.read_bytes()[:-7])
    assert machine_code("matmul", text) == first
    assert len(file.read_bytes()) == len(first) + 65


def test_operands_that_do_not_fit_are_refused() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with pytest.raises(TypeError, match="float64"):
        OPERATOR(a.double(), b, None)
    for left, right, bias in ((a, a, None), (a, b, torch.randn(1)), (a, b, torch.randn(4)), (a[0], b, None)):
        with pytest.raises(ValueError, match="expected shapes"):
            OPERATOR(left, right, bias)
    spread = torch.randn(10)[::2]
    torch.testing.assert_close(OPERATOR(a, b, spread), torch.addmm(spread, a, b))
    assert OPERATOR(a.to("meta"), b.to("meta"), None).shape == (3, 5)
