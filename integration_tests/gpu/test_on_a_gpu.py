"""Tests that need a GPU, against eager there: torch's operators, the benchmarks' models, and CUDA's own features.

Nothing here runs without one. `tools/gpu_check.py` runs it with everything else that needs a GPU.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import framesmith
from framesmith_backends.cuda_graphs import captured_graph as recordings
from framesmith_backends.cuda_graphs.captured_graph import CapturedGraph
from integration_tests.gpu.comparison import DEVICE, Program, R, compare, moved

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def chained(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + y) * torch.sigmoid(y) - x.softmax(-1)


def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b).relu() + F.rms_norm(x, x.shape[-1:], w)


def changed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(y)
    x[1:] += y[:-1]
    return x.t() @ y


def random(x: torch.Tensor) -> Any:
    noise = torch.randn_like(x) + torch.rand(x.shape, device=x.device)
    return F.dropout(x, 0.3) + noise, torch.bernoulli(x.sigmoid()), F.dropout(x.relu(), 0.5, True)


def mixed(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return x * number + torch.tensor(3.0) - torch.ones(()) / 2


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q * 0.5, k, v, is_causal=True).transpose(1, 2).flatten(2)


def flexible(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> Any:
    """Flex attention under a mask that leaves rows without anything, of heads that share keys."""

    def seen(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (i >= j) & (i % 5 != 0)

    def sloping(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        return score - slopes[h] * (i - j)

    mask = create_block_mask(seen, None, None, q.shape[2], k.shape[2], device=str(q.device))
    return flex_attention(q, k, v, score_mod=sloping, block_mask=mask, enable_gqa=True)


def through_the_cpu(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).cpu().sin()
    return y.to(x.device) + x


def with_item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item() if x.sum() > 0 else x - 1


def scattered(x: torch.Tensor, i: torch.Tensor) -> Any:
    zeros = torch.zeros(64, x.shape[1], device=x.device)
    return zeros.index_add(0, i, x), zeros.index_put((i,), x, accumulate=True), x[i % x.shape[0]]


def autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return F.linear(F.gelu(F.linear(x, w)), w).softmax(-1).float()


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2).mean((2, 3))


def ordered(x: torch.Tensor) -> Any:
    values, positions = x.topk(3)
    return values, positions, x.sort(0).values, x.argmax(1), x.cumsum(1), x.cummax(0).values


def kinds(x: torch.Tensor) -> Any:
    return x.half() * 2, x.double().exp(), (x > 0), (x * 7).to(torch.int32) // 3, torch.complex(x, x * 2) * 1j


def scaled_gradient(x: torch.Tensor) -> torch.Tensor:
    y = (x * 3).tanh()
    y.register_hook(lambda g: g * 2)
    return y.exp()


def wanting(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], Sequence[Any]]:
    return lambda: [R(shape).to(dtype).requires_grad_() for shape in shapes]


PROGRAMS: dict[str, Program] = {
    "chain": Program(chained, wanting((64, 300), (300,))),
    "chain of halves": Program(chained, wanting((64, 300), (300,), dtype=torch.float16)),
    "chain of bf16": Program(chained, wanting((64, 300), (300,), dtype=torch.bfloat16)),
    "long rows": Program(lambda x: (x.softmax(-1), x.logsumexp(-1)), wanting((3, 70_000))),
    "norms": Program(normed, wanting((500, 768), (768,), (768,)), 50.0),
    "changed": Program(changed, lambda: (R(40, 40), R(40, 40))),
    "unaligned": Program(lambda x: x.view(-1)[1:-3].exp().sum() + x[:, 1:].relu().sum(), wanting((33, 65))),
    "random": Program(random, wanting((1000, 33))),
    "numbers of the cpu": Program(mixed, lambda: (moved(R(20, 30)), torch.tensor(2.5))),
    "attention": Program(attended, wanting(*[(2, 4, 96, 64)] * 3)),
    "attention of bf16": Program(attended, wanting(*[(2, 4, 96, 64)] * 3, dtype=torch.bfloat16)),
    **{
        f"flex attention of heads of {depth} in {dtype}": Program(
            flexible,
            lambda depth=depth, dtype=dtype: (  # type: ignore[misc]
                R(2, 4, 150, depth).to(dtype),
                *(R(2, 2, 200, depth).to(dtype) for _ in range(2)),
                R(4),
            ),
        )
        for depth, dtype in ((64, torch.bfloat16), (80, torch.float16), (128, torch.bfloat16), (64, torch.float32))
    },
    **{
        f"gradients of flex attention, heads of {depth} in {dtype}": Program(
            flexible,
            lambda depth=depth, dtype=dtype: (  # type: ignore[misc]
                R(2, 4, 150, depth).to(dtype).requires_grad_(),
                *(R(2, 2, 200, depth).to(dtype).requires_grad_() for _ in range(2)),
                R(4),
            ),
            50.0,
        )
        for depth, dtype in ((64, torch.bfloat16), (80, torch.float16), (128, torch.bfloat16), (64, torch.float32))
    },
    "flex attention with gradients": Program(
        flexible,
        lambda: (
            R(2, 4, 150, 64).requires_grad_(),
            *(R(2, 2, 200, 64).requires_grad_() for _ in range(2)),
            R(4).requires_grad_(),
        ),
    ),
    "through the cpu": Program(through_the_cpu, wanting((10, 10))),
    "items": Program(with_item, lambda: (R(10).abs(),)),
    "scattering": Program(scattered, lambda: (R(100, 16).requires_grad_(), torch.randint(0, 64, (100,)))),
    "autocast": Program(autocast, wanting((32, 64), (64, 64)), 1000.0),
    "channels last": Program(
        convolved,
        lambda: (
            R(4, 8, 32, 32).to(memory_format=torch.channels_last).requires_grad_(),
            R(16, 8, 3, 3).requires_grad_(),
        ),
    ),
    "statistics": Program(
        lambda x, mean, var: (F.batch_norm(x, mean, var, training=True), x.var((0, 2, 3)), torch.var_mean(x)),
        lambda: (R(8, 64, 48, 48).requires_grad_(), torch.zeros(64), torch.ones(64)),
        50.0,
    ),
    "statistics of channels last": Program(
        lambda x, mean, var: (F.batch_norm(x, mean, var, training=True).relu(), x.std((0, 2, 3)), x.mean((0, 2, 3))),
        lambda: (
            (R(8, 48, 40, 24) + 3).to(memory_format=torch.channels_last).requires_grad_(),
            torch.zeros(48),
            torch.ones(48),
        ),
        50.0,
    ),
    "orders": Program(ordered, lambda: (R(50, 70),)),
    "types": Program(kinds, lambda: (R(50, 70),)),
    "hooks": Program(scaled_gradient, wanting((12,))),
    "expanded": Program(lambda x: (x.expand(64, -1) * 2).sum(0) + x.flip(0), wanting((512,))),
    "empty": Program(lambda x: (x.exp(), x.sum(), x.sum(0)), lambda: (R(0, 7),)),
    "single": Program(lambda x: (x.exp() + 1, x.softmax(0)), wanting((1,))),
    "columns": Program(lambda x: (x.sum(0), x.mean((0, 1)), x.var(0), x.amax(0)), wanting((700, 5, 37)), 50.0),
    "everything": Program(lambda x: (x.sum(), x.std(), x.norm(), x.max()), wanting((1 << 20,)), 1000.0),
    "joined": Program(lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y])), wanting((30, 20), (30, 20))),
    "losses": Program(
        lambda x, t: F.cross_entropy(x, t), lambda: (R(64, 1000).requires_grad_(), torch.randint(0, 1000, (64,)))
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_a_gpu(name: str, dynamic: bool | None) -> None:
    framesmith.reset()
    program = PROGRAMS[name]
    compiled = framesmith.compile(program.function, dynamic=dynamic, strict=True)
    for seed in range(3):
        torch.manual_seed(seed)
        values = program.inputs()
        compare(program.function, compiled, [moved(v) if v.dim() else v for v in values], program.scale)


@pytest.mark.parametrize("mode", ["max-autotune-no-cudagraphs", "max-autotune"])
def test_what_is_measured_on_a_gpu(mode: str) -> None:
    """Matmuls with prologues and epilogues: whichever candidate is the fastest."""
    framesmith.reset()

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x.relu(), w, b)) * 2

    compiled = framesmith.compile(function, strict=True, mode=mode)
    for seed in range(3):
        torch.manual_seed(seed)
        values = [R(shape, device=DEVICE, dtype=torch.bfloat16) for shape in ((64, 64), (48, 64), (48,))]
        compare(function, compiled, values, 30.0)


def test_changing_sizes_on_a_gpu() -> None:
    compiled = framesmith.compile(chained, strict=True)
    for rows, columns in ((3, 5), (4, 7), (300, 129), (0, 5), (1, 6), (64, 5000), (17, 1000)):
        compare(chained, compiled, [R(rows, columns, device=DEVICE).requires_grad_(), R(columns, device=DEVICE)], 10.0)


def test_on_a_stream_of_the_users_on_a_gpu() -> None:
    compiled = framesmith.compile(lambda x: (x @ x).softmax(-1).cumsum(0) * 2)
    x = R(2048, 2048, device=DEVICE) / 50
    for _ in range(3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x
            for _ in range(5):
                y = y @ x
            found = compiled(y)
        torch.cuda.current_stream().wait_stream(stream)
        for _ in range(5):
            x @ x
        expected = (y @ y).softmax(-1).cumsum(0) * 2
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_captured_by_the_user_on_a_gpu() -> None:
    compiled = framesmith.compile(lambda x: F.gelu(x @ x).softmax(-1))
    x = R(64, 64, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
    for _ in range(3):
        x.copy_(R(64, 64))
        graph.replay()
        torch.testing.assert_close(y, F.gelu(x @ x).softmax(-1))


def test_nothing_waits_for_the_gpu_on_a_gpu() -> None:
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).to(DEVICE)
    compiled = framesmith.compile(module)
    x, t = R(32, 64, device=DEVICE), torch.randint(0, 10, (32,), device=DEVICE)
    step = framesmith.compile(lambda: F.cross_entropy(compiled(x), t))
    for turn in range(3):
        torch.cuda.set_sync_debug_mode("error" if turn else "default")
        try:
            step().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def deep(x: torch.Tensor, w: torch.Tensor, count: int = 4) -> torch.Tensor:
    for _ in range(count):
        x = F.layer_norm(F.gelu(x @ w) + x, x.shape[-1:])
    return x


def masked_by_the_cpu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = deep(x, w)
    mask = torch.arange(w.shape[0], device="cpu") % 3 == 0
    return deep(y * mask.to(x.device), w)


def read_in_the_middle(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = deep(x, w)
    return deep(y * y.abs().mean().item(), w)


def chosen_in_the_middle(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = deep(x, w)
    rows = (x[:, 0] > 0).nonzero()[:, 0]
    return deep(y + y[rows].sum(0), w), y[rows], y


def scaled_by_the_cpu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for scale in [torch.tensor(1.5), torch.tensor(2.0), torch.ones(()) / 3]:
        x = deep(x, w, 2) * scale
    return x


def drawn_on_both_sides(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.dropout(deep(x, w), 0.3, True)
    y = y + (y > 0).float().mean().item()
    return F.dropout(deep(y, w), 0.3, True) + torch.rand_like(y)


def written_in_the_middle(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = deep(x, w)
    x.mul_(y.abs().mean().item())
    return deep(x + y, w)


IN_PARTS = [
    masked_by_the_cpu, read_in_the_middle, chosen_in_the_middle, scaled_by_the_cpu, drawn_on_both_sides,
    written_in_the_middle,
]  # fmt: skip


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[CapturedGraph]:
    """The graphs captured from here on."""
    made: list[CapturedGraph] = []

    class Noted(CapturedGraph):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(recordings, "CapturedGraph", Noted)
    return made


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "changing"])
@pytest.mark.parametrize("function", IN_PARTS)
def test_parts_are_recorded_on_a_gpu(
    function: Callable[..., Any], dynamic: bool | None, recorded: list[CapturedGraph]
) -> None:
    framesmith.reset()
    compiled = framesmith.compile(function, backend="cuda", mode="reduce-overhead", fullgraph=True, dynamic=dynamic)
    w, held = R(64, 64, device=DEVICE) / 8, []
    for step in range(10):
        x = R(32 + step % 2 if dynamic else 32, 64, device=DEVICE)
        mine = x.clone()
        torch.manual_seed(step)
        expected, state = function(x, w), torch.cuda.get_rng_state()
        torch.manual_seed(step)
        held.append((compiled(mine, w), expected, mine, x))
        assert torch.equal(torch.cuda.get_rng_state(), state)
        for found, right, *both in held:
            torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(*both, rtol=1e-3, atol=1e-3)
        del held[: -1 - step % 3]
    assert recorded and all(graphed.counts.replayed for graphed in recorded)


def test_parts_that_are_recorded_wait_no_more_than_eager_mode_on_a_gpu() -> None:
    framesmith.reset()
    compiled = framesmith.compile(scaled_by_the_cpu, backend="cuda", mode="reduce-overhead", fullgraph=True)
    x, w = R(32, 64, device=DEVICE), R(64, 64, device=DEVICE) / 8
    for turn in range(5):
        torch.cuda.set_sync_debug_mode("error" if turn > 2 else "default")
        try:
            compiled(x, w)
        finally:
            torch.cuda.set_sync_debug_mode("default")


class ReadInTheMiddle(nn.Module):
    """A number of data between layers, in the forward pass and in the backward one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.ModuleList(nn.Linear(32, 32) for _ in range(3)) for _ in range(2))
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.first:
            x = F.gelu(layer(x)) + x
        x = F.dropout(self.norm(x / (x.detach().abs().mean().item() + 1)), 0.2, self.training)
        for layer in self.second:
            x = F.gelu(layer(x)) + x
        return x


def test_training_in_parts_on_a_gpu(recorded: list[CapturedGraph]) -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = ReadInTheMiddle().to(DEVICE)
        optimizer, call = torch.optim.SGD(module.parameters(), lr=1e-2), wrap(module)
        for _ in range(8):
            optimizer.zero_grad()
            call(R(64, 32, device=DEVICE)).square().mean().backward()
            optimizer.step()
        return [x.detach().clone() for x in module.state_dict().values()]

    expected = trained(lambda f: f)
    framesmith.reset()
    found = trained(lambda f: framesmith.compile(f, backend="cuda", mode="reduce-overhead", fullgraph=True))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
    assert len(recorded) >= 4 and all(graphed.counts.replayed for graphed in recorded)


def test_beyond_32_bits_on_a_gpu() -> None:
    count = (1 << 31) + 1000
    if torch.cuda.mem_get_info()[0] < 6 * count:
        pytest.skip("too little memory")
    x = torch.zeros(count, dtype=torch.int8, device=DEVICE)
    x[-3:] = 5
    y = framesmith.compile(lambda x: x * 2 + 1, strict=True)(x)
    assert y[-3:].tolist() == [11, 11, 11] and y[:3].tolist() == [1, 1, 1]
    assert int(framesmith.compile(lambda x: (x > 4).sum(), strict=True)(x)) == 3


def test_two_threads_on_a_gpu() -> None:
    compiled = framesmith.compile(lambda x: (x * 2).softmax(-1).sum(0) + x.exp().mean(0))
    errors: list[Exception] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                generator = torch.Generator(DEVICE).manual_seed(seed)
                for k in range(1, 20):
                    x = torch.randn(k, 100 + seed, device=DEVICE, generator=generator)
                    expected = (x * 2).softmax(-1).sum(0) + x.exp().mean(0)
                    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


OUT_OF_BOUNDS = """
import torch, framesmith
table, rows = torch.randn(10, 4, device="cuda"), torch.tensor([1, 12], device="cuda")
framesmith.compile(lambda t, i: torch.nn.functional.embedding(i, t) * 2, strict=True)(table, rows)
torch.cuda.synchronize()
"""


def test_a_place_out_of_bounds_is_an_error_on_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_BOUNDS], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0 and "assert" in done.stderr, done.stderr[-2000:]


def test_graphs_of_the_cpu_alone_on_a_gpu() -> None:
    """Asked for by its name, the backend has no kernels for them."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).cpu()
        print(end="")  # a graph break
        return y * 3 + 1

    x = R(20, device=DEVICE)
    for mode in ("default", "reduce-overhead"):
        framesmith.reset()
        compiled = framesmith.compile(function, backend="cuda", mode=mode)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), function(x))


def test_a_default_device_on_a_gpu() -> None:
    def function(n: int) -> torch.Tensor:
        return torch.arange(n) * 2 + torch.ones(n)

    with torch.device(DEVICE):
        found = framesmith.compile(function)(7)
    assert found.device.type == DEVICE
    assert found.tolist() == [2 * k + 1 for k in range(7)]
    assert framesmith.compile(function)(7).device.type == "cpu"
