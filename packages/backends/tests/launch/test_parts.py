"""Graphs captured in parts: where they are partitioned, and that results are the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from graphs.tracing_symbolic import trace_symbolic
from graphs.two_devices import GPU, OF_THE_CPU, on_cpu, on_gpu, run_by_parts, run_on_cpu, traced, with_writes
from stand_ins.capturer import StandIn
from torch import fx
from torch.nn import functional as F

from framesmith_backends import CudaBackend, cuda, target
from framesmith_backends.cuda_graphs import capturer as cuda_graphs
from framesmith_backends.cuda_graphs.partition import FEWEST_LAUNCHES, Part, partition, written_in_parts
from framesmith_backends.pipeline import Compilation
from framesmith_backends.rewrite.scalars import with_scalars_moved

aten = torch.ops.aten
SQUARE = ((4, 4), "cuda:0")
NUMBER = ((), "cpu")
CAPTURING = Compilation(target.GPU, "inference", {"mode": "reduce-overhead"}, cuda._attends)


def layers(x: torch.Tensor, w: torch.Tensor, count: int = 3) -> torch.Tensor:
    for _ in range(count):
        x = torch.softmax(torch.relu(x @ w), -1)
    return x


def parts_of(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[Part]]:
    graph, parts = cuda._partitioned(gm, CAPTURING)
    assert parts is not None
    return graph, parts


def kinds(parts: list[Part]) -> str:
    """R for each part that is captured, and P for each that runs plainly."""
    return "".join("R" if part.why is None else "P" for part in parts)


def targets(part: Part) -> list[str]:
    return [str(node.target) for node in part.graph.graph.nodes if node.op == "call_function"]


def masked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A mask of the CPU in the middle, which needs nothing of the device."""
    y = layers(x, w)
    mask = torch.arange(4, dtype=torch.float32).remainder(2)
    return layers(y * on_gpu(mask), w)


def read(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = layers(x, w)
    return layers(y * y.sum().item(), w)


def chosen(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = layers(x, w)
    rows = aten.nonzero(x.select(1, 0) > 0).select(1, 0)
    return layers(w + y.index_select(0, rows).sum(0), w)


def there_and_back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = layers(x, w)
    return layers(y + on_gpu(on_cpu(y).sin()), w)


def nothing_in_common(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Two chains, each of which reads a number in the middle."""
    first, second = layers(x, w), layers(x.t(), w)
    return layers(first * first.sum().item(), w), layers(second * second.sum().item(), w)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("function", "expected"),
    [(masked, "PR"), (read, "RPR"), (chosen, "RPR"), (there_and_back, "RPR"), (nothing_in_common, "RPR")],
)
def test_there_are_few_parts_and_results_are_the_same(function: Callable[..., Any], expected: str) -> None:
    gm = traced(function, [SQUARE, SQUARE])
    graph, parts = parts_of(gm)
    assert kinds(parts) == expected
    run, made = run_by_parts(graph, parts)
    plain, held = run_on_cpu(gm), []
    w = torch.randn(4, 4)
    for step in range(12):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        args = [x, w]
        held.append((run(args), plain([x, w])))
        assert not args
        for found, right in held:
            torch.testing.assert_close(list(found), list(right))
        del held[:-3]
    assert all(one.counts.replayed >= 9 for one in made)


def test_tensors_between_captured_parts_are_not_copied() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = layers(x, w)
        k = y.sum().item()
        z = layers(y, w)
        return layers(y * k, w), z

    def later(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = layers(x, w)
        z = layers(y * y.sum().item(), w)
        return layers(y + z, w)

    for one in (function, later):
        gm = traced(one, [SQUARE, SQUARE])
        graph, parts = parts_of(gm)
        run, made = run_by_parts(graph, parts)
        x, w = torch.randn(4, 4), torch.randn(4, 4)
        for _ in range(6):
            run([x, w])
        assert made[0].counts.captured == 1
        copied = [capture.copies.positions for variant in made[-1]._variants.values() for capture in variant.captures]
        taken = parts[-1].takes
        direct = [taken.index(name) for name in taken if name in parts[0].gives]
        assert not any(at in positions for positions in copied for at in direct)


def test_few_launches_are_not_captured() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = layers(x, w)
        y = (y * y.sum().item()).sin() @ w
        return layers(y * y.sum().item(), w)

    _graph, parts = parts_of(traced(function, [SQUARE, SQUARE]))
    assert kinds(parts) == "RPR"
    assert targets(parts[1]).count("aten._local_scalar_dense.default") == 2

    def few(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin() * x.sum().item()

    gm = traced(few, [SQUARE, SQUARE])
    assert cuda._partitioned(gm, CAPTURING) == (gm, None)
    assert CudaBackend().explain(gm, {"mode": "reduce-overhead"}).capture.startswith("none: ")
    assert FEWEST_LAUNCHES > 2


def test_a_graph_with_nothing_to_cut_is_as_ever() -> None:
    gm = traced(lambda x, w: layers(x, w), [SQUARE, SQUARE])
    assert cuda._partitioned(gm, CAPTURING) == (gm, None)
    other = traced(read, [SQUARE, SQUARE])
    assert cuda._partitioned(other, replace(CAPTURING, options={"mode": "default"})) == (other, None)


def test_writes_come_after_what_reads_and_after_what_may_fail() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> Any:
        y = layers(x + state, w)
        k = y.sum().item()
        late = on_cpu(state).sin()
        return state * 2, layers(y * k, w), late, torch.linalg.inv(on_cpu(y) + torch.eye(4))

    gm = with_writes(traced(function, [SQUARE, SQUARE, SQUARE]), [2])
    graph, parts = parts_of(gm)
    at = {target: number for number, part in enumerate(parts) for target in targets(part)}
    assert at["aten.copy_.default"] >= max(number for name, number in at.items() if "inv" in name or "sin" in name)
    run, _made = run_by_parts(graph, parts)
    plain = run_on_cpu(gm)
    w, state, expected = torch.randn(4, 4), torch.ones(4, 4), torch.ones(4, 4)
    for _ in range(6):
        x = torch.randn(4, 4)
        found, right = run([x, w, state]), plain([x, w, expected])
        torch.testing.assert_close([*found, state], [*right, expected])


def test_writes_come_after_what_may_fail() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> Any:
        y = on_cpu((layers(x, w) * 10).long())
        return state * 2, y // (y - 1)

    _, parts = parts_of(with_writes(traced(function, [SQUARE, SQUARE, SQUARE]), [2]))
    order = [target for part in parts for target in targets(part)]
    assert order.index("aten.copy_.default") > order.index("aten.floor_divide.default")


def test_random_numbers_of_a_device_keep_their_order() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = layers(x + torch.rand_like(x), w)
        noise = torch.rand_like(torch.empty(4))
        z = y * y.sum().item()
        return layers(y * on_gpu(noise + torch.rand_like(noise)), w) + torch.rand_like(z) - torch.rand_like(x)

    gm = traced(function, [SQUARE, SQUARE])
    graph, parts = parts_of(gm)
    same_for_seeds(gm, graph, parts, lambda: [torch.ones(4, 4), torch.ones(4, 4)])


def same_for_seeds(gm: fx.GraphModule, graph: fx.GraphModule, parts: list[Part], inputs: Callable[[], Any]) -> None:
    run, plain = run_by_parts(graph, parts)[0], run_on_cpu(gm)
    for seed in range(5):
        outcomes = []
        for function in (run, plain):
            torch.manual_seed(seed)
            OF_THE_CPU.manual_seed(seed)
            given_ = inputs()
            kept = [*given_]
            outcomes.append([*function(given_), *kept, torch.rand(1), torch.rand(1, generator=OF_THE_CPU)])
        torch.testing.assert_close(*outcomes)


def test_a_part_that_cannot_be_captured_falls_back_alone(caplog: pytest.LogCaptureFixture) -> None:
    from framesmith_backends import reporting

    reporting.log_once.cache_clear()
    graph, parts = parts_of(traced(read, [SQUARE, SQUARE]))
    run, made = run_by_parts(graph, parts)
    made[1].capturer.error = RuntimeError("not permitted")  # type: ignore[attr-defined]
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with caplog.at_level("WARNING", "framesmith.plan"):
        for _ in range(4):
            torch.testing.assert_close(run([x, w])[0], layers(layers(x, w) * layers(x, w).sum(), w))
    assert made[0].counts.replayed == 3 and made[1].counts.replayed == 0
    assert [record.getMessage() for record in caplog.records if record.name == "framesmith.plan"] == [
        "part 2 runs without CUDA graphs: capture failed: RuntimeError: not permitted"
    ]


def test_views_are_taken_again_and_constants_too() -> None:
    table = torch.randn(4, 4)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        first, second = layers(x, w).split(2)
        k = first.sum().item()
        y = layers(torch.cat([second * k, second.flip(0)]), w) + on_gpu(table)
        return y.t(), x.narrow(0, 1, 3), first.t(), None, y

    gm = traced(function, [SQUARE, SQUARE])
    graph, parts = parts_of(gm)
    assert all("split" not in name for part in parts for name in (*part.takes, *part.gives))
    same_for_seeds(gm, graph, parts, lambda: [torch.ones(4, 4), torch.eye(4)])


def test_values_are_dropped_when_they_die() -> None:
    graph, parts = parts_of(traced(read, [SQUARE, SQUARE]))
    source, space = written_in_parts(graph, parts)
    assert not space and source.splitlines() == [
        "def call(args):",
        "    [v0, v1] = args",
        "    args.clear()",
        "    taken = [v0, v1]",
        "    del v0",
        "    [v2, v3] = part0(taken)",
        "    taken = [v2, v3]",
        "    del v2, v3",
        "    [v4] = part1(taken)",
        "    taken = [v1, v4]",
        "    del v1, v4",
        "    [v5] = part2(taken)",
        "    return [v5]",
    ]


def test_numbers_of_the_cpu_get_to_the_device_by_one_copy() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
        for scale in scales:
            x = layers(x, w, 1) * (scale + 1) + torch.ones(())
        return x / torch.ones(()).sin()

    gm = traced(function, [SQUARE, SQUARE, *[NUMBER] * 4])
    graph, parts = parts_of(gm)
    assert kinds(parts) == "PR"
    assert targets(parts[0]).count("aten._to_copy.default") == 1 == targets(parts[0]).count("aten.stack.default")
    same_for_seeds(gm, graph, parts, lambda: [torch.eye(4), torch.eye(4), *map(torch.tensor, (1.0, 2.0, 3.0, 4.0))])


def test_a_constant_number_is_made_on_the_device() -> None:
    gm = traced(lambda x, w: layers(x, w) + torch.ones(()), [SQUARE, SQUARE])
    graph, parts = cuda._partitioned(gm, CAPTURING)
    assert parts is None and graph is not gm and cuda.why_no_cuda_graph(graph) is None
    assert not any(
        value.device.type == "cpu" for node in graph.graph.nodes if (value := node.meta.get("val")) is not None
    )


def test_a_number_that_would_be_rounded_stays_where_it_is() -> None:
    gm = traced(lambda x, s: x.to(torch.float16) * s, [SQUARE, NUMBER])
    assert with_scalars_moved(gm, GPU) is gm


def test_numbers_made_of_the_device_s_are_copied_by_themselves() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        y = layers(x, w) * s
        mean = on_cpu(y.mean()) * s
        return layers(y * mean, w)

    gm = traced(function, [SQUARE, SQUARE, NUMBER])
    graph, parts = parts_of(gm)
    assert kinds(parts) == "PRPR"
    same_for_seeds(gm, graph, parts, lambda: [torch.eye(4), torch.eye(4), torch.tensor(3.0)])


def test_part_of_a_view_by_strides_is_not_guessed() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        seen = x.as_strided((2, 4), (4, 1), 4)
        return layers(x, w), layers(seen + 1, w)

    gm = traced(function, [SQUARE, SQUARE])
    _graph, parts = parts_of(gm)
    assert kinds(parts) == "PR"
    assert partition(with_writes(gm, [0]), GPU, lambda part: 9) is None


def test_explain_lists_the_parts() -> None:
    text = CudaBackend().explain(traced(read, [SQUARE, SQUARE]), {"mode": "reduce-overhead"}).text()
    assert "# CUDA graph\nin parts, each lowered by itself\narg0_1, arg1_1 -> " in text
    assert "2 nodes, not captured: aten._local_scalar_dense.default reads a number from the device" in text


def test_explain_shows_what_runs() -> None:
    """The plan of each part, and of a graph whose numbers of the CPU are made on the device that graph."""
    gm = traced(read, [SQUARE, SQUARE])
    _graph, parts = parts_of(gm)
    stages = CudaBackend().explain(gm, {"mode": "reduce-overhead"})
    assert [part.capture for part in stages.parts] == [part.text() for part in parts]
    assert [targets(part) for part in parts] == [
        [str(node.target) for node in one.graph.graph.nodes if node.op == "call_function"] for one in stages.parts
    ]
    text = stages.text()
    for at, part in enumerate(stages.parts):
        assert f"# part {at + 1} of {len(parts)}" in text and part.plan.text() in text
    one = CudaBackend().explain(
        traced(lambda x, w: layers(x, w) + torch.ones(()), [SQUARE, SQUARE]), {"mode": "reduce-overhead"}
    )
    values = [node.meta.get("val") for node in one.graph.graph.nodes]
    assert not one.parts and not any(value is not None and value.device.type == "cpu" for value in values)
    assert one.capture == "captured in the second call with the same sizes"


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_the_backend_compiles_each_part_by_itself(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    sources: list[str] = []

    def launcher(stages: cuda.TritonStages, index: int | None = None, compile_body: Any = None) -> Any:
        asked.append(index)
        sources.append(stages.source)
        return run_on_cpu(stages.graph)

    def capturer(index: int) -> StandIn:
        asked.append(index)
        return StandIn()

    monkeypatch.setattr(CudaBackend, "why_not_here", lambda self: None)
    monkeypatch.setattr(cuda, "launcher", launcher)
    monkeypatch.setattr(cuda_graphs, "CudaCapturer", capturer)

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> Any:
        mask = torch.arange(4, dtype=torch.float32).remainder(2)
        y = layers(x * aten._to_copy.default(mask, device=x.device), w) * scale
        return x + 1, layers(y * y.sum().item(), w)

    gm = with_writes(traced(function, [((4, 4), device), ((4, 4), device), NUMBER]), [0])
    run, plain = CudaBackend().compile(gm, [], options={"mode": "reduce-overhead"}), run_on_cpu(gm)
    assert {*asked} == {int(device[-1])} and len(asked) == 5
    assert "run" not in sources[0] and all("run" in source for source in sources[1:])
    w, scale = torch.randn(4, 4), torch.tensor(0.5)
    mine, theirs = torch.zeros(4, 4), torch.zeros(4, 4)
    for step in range(5):
        scale.fill_(step)
        torch.testing.assert_close([*run([mine, w, scale])], [*plain([theirs, w, scale])])
        assert torch.equal(mine, theirs)


def test_a_failed_partition_is_reported_and_leaves_the_graph_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("of ours")

    reported: list[str] = []
    monkeypatch.setattr(CudaBackend, "why_not_here", lambda self: None)
    monkeypatch.setattr(cuda, "launcher", lambda stages, *_: run_on_cpu(stages.graph))
    monkeypatch.setattr(cuda, "partition", fails)
    gm, x = traced(read, [SQUARE, SQUARE]), torch.eye(4)
    options = {"mode": "reduce-overhead"}
    run = CudaBackend().compile(
        gm, [], options=options, on_error=lambda what, error: reported.append(f"{what}: {error}")
    )
    torch.testing.assert_close([*run([x, x])], [*run_on_cpu(gm)([x, x])])
    assert reported == ["partitioning a graph: of ours"]
    with pytest.raises(RuntimeError, match="of ours"):
        CudaBackend().compile(gm, [], options=options)


def test_numbers_of_sizes_go_along() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        rows = x.shape[0]
        y = layers(x, w).reshape(rows * 4) + rows * 2
        z = (y * y.sum().item()).reshape(rows, 4) / (rows * 4)
        return layers(z, w) * (rows * 4 + 1), z.new_ones(rows + 3), rows * 2

    gm = trace_symbolic(function, [torch.ones(5, 4), torch.ones(4, 4)])
    parts = partition(gm, torch.device("cpu"), lambda part: 9)
    assert parts is not None
    known = {node.name for node in gm.graph.nodes if node.op == "placeholder"}
    for part in parts:
        assert known.issuperset(part.takes) and known.isdisjoint(part.gives)
        known.update(part.gives)
    names = [node.name for part in parts for node in part.graph.graph.nodes if node.op == "call_function"]
    kept = {node.name for node in gm.graph.nodes if node.op == "call_function"}
    assert len({*names}) == len(names) and {*names} <= kept


def test_chains_may_be_longer_than_calls_may_be_nested() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        for _ in range(1200):
            s = s * 1.001
        return layers(x * s, w)

    def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        view = x
        for _ in range(1200):
            view = view.t()
        y = layers(view, w)
        return layers(y * y.sum().item(), w)

    assert kinds(parts_of(traced(scaled, [SQUARE, SQUARE, NUMBER]))[1]) == "PR"
    assert kinds(parts_of(traced(transposed, [SQUARE, SQUARE]))[1]) == "RPR"

    def counted(x: torch.Tensor, w: torch.Tensor) -> Any:
        return layers(x, w), x.shape[0] * 2

    gm = trace_symbolic(counted, [torch.ones(5, 4), torch.ones(4, 4)])
    (number,) = (node for node in gm.graph.nodes if node.target is operator.mul)
    size = number.meta["val"]
    last = number
    with gm.graph.inserting_before(gm.graph.output_node()):
        for _ in range(1200):
            last = gm.graph.call_function(operator.neg, (last,))
            last.meta["val"] = size
    number.replace_all_uses_with(last, delete_user_cb=lambda user: user.op == "output")
    parts = partition(gm, torch.device("cpu"), lambda part: 9)
    assert parts is not None
    (part,) = parts
    assert sum(node.target is operator.neg for node in part.graph.graph.nodes) == 1200


def test_launches_are_counted() -> None:
    plan = CudaBackend().explain(traced(lambda x, w: (layers(x, w, 2).t(), x.t()), [SQUARE, SQUARE])).plan
    assert plan.launches == 4  # two matmuls, two kernels


OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda a, b, c: (a @ b).relu(),
    "sum": lambda a, b, c: a + b * 0.5,
    "view": lambda a, b, c: a.t(),
    "part": lambda a, b, c: torch.cat([a.narrow(0, 0, 2), b.narrow(0, 2, 2)]),
    "random": lambda a, b, c: a + torch.rand_like(b),
    "read": lambda a, b, c: a * b.sum().clamp(-2, 2).item(),
    "chosen": lambda a, b, c: a + b.index_select(0, aten.nonzero(b.select(1, 0) > 0).select(1, 0)).sum(0).clamp(-2, 2),
    "moved": lambda a, b, c: a + on_gpu(c),
    "scaled": lambda a, b, c: a * c.select(0, 0).select(0, 0),
    "split": lambda a, b, c: a.split(2)[1].repeat(2, 1) + b,
}
OF_CPU: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cpu matmul": lambda a, b, c: (c @ c).clamp(-2, 2),
    "cpu random": lambda a, b, c: c + torch.rand_like(c),
    "fetched": lambda a, b, c: on_cpu(a).clamp(-2, 2),
    "cpu view": lambda a, b, c: c.t(),
}


@pytest.mark.sampled(21)
@pytest.mark.parametrize("seed", range(40))
def test_any_program_in_parts_gives_what_it_gives(seed: int) -> None:
    chance = Random(seed)
    names = [*OPERATIONS, *OPERATIONS, *OF_CPU]
    steps = [(chance.choice(names), [chance.random() for _ in range(3)]) for _ in range(chance.randint(8, 40))]
    written = chance.random() < 0.5

    def function(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> Any:
        there, here = [x, w], [c]
        for name, (one, two, three) in steps:
            a, b = there[int(one * len(there))], there[-1 - int(two * two * len(there))]
            made = (OPERATIONS | OF_CPU)[name](a, b, here[int(three * len(here))])
            (here if name in OF_CPU else there).append(made)
        state = there[len(there) // 2].clamp(-1, 1) if written else x * 2
        return state, *(value.clamp(-9, 9) for value in there[2:]), here[-1] * 1, there[-1].t()

    gm = traced(function, [SQUARE, SQUARE, ((4, 4), "cpu")])
    if written:
        gm = with_writes(gm, [0])
    graph = with_scalars_moved(gm, GPU)
    parts = partition(graph, GPU, lambda part: chance.randint(2, 6))
    if parts is not None:
        start = [torch.randn(4, 4, generator=torch.Generator().manual_seed(at)) for at in range(3)]
        same_for_seeds(gm, graph, parts, lambda: [one.clone() for one in start])


def test_dropout_and_a_count_in_training() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.dropout(layers(x, w), 0.5, True)
        return F.dropout(layers(y * (y > 0).sum().item(), w), 0.5, True)

    gm = traced(function, [SQUARE, SQUARE])
    graph, parts = parts_of(gm)
    assert kinds(parts) == "RPR"
    same_for_seeds(gm, graph, parts, lambda: [torch.eye(4), torch.eye(4)])
