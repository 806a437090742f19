"""Buffers in an arena: none that live at the same time share bytes, and not more is asked for than they need."""

from collections.abc import Callable

import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from hypothesis import given, settings
from hypothesis import strategies as st

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph
from framesmith_backends.schedule.memory.arena import BUFFER_ALIGNMENT, Span, lent_bytes, placed, taken
from framesmith_backends.schedule.plan import list_steps, make_plan, place_buffers
from framesmith_backends.schedule.steps import Allocate, Run
from framesmith_backends.target import CPU, GPU


@st.composite
def spans(draw: st.DrawFn) -> list[Span[int]]:
    found = []
    for k in range(draw(st.integers(1, 24))):
        first = draw(st.integers(0, 30))
        size = BUFFER_ALIGNMENT * draw(st.integers(0, 40))
        found.append(Span(f"b{k}", size, first, first + draw(st.integers(0, 12))))
    return found


@settings(max_examples=300, deadline=None)
@given(spans())
def test_living_buffers_do_not_overlap(given_spans: list[Span[int]]) -> None:
    offsets, size = placed(given_spans)
    assert offsets.keys() == {span.name for span in given_spans}
    for one in given_spans:
        assert offsets[one.name] % BUFFER_ALIGNMENT == 0 and offsets[one.name] + one.size <= size
        for other in given_spans:
            if one is not other and one.meets(other) and one.size and other.size:
                before = offsets[one.name] + one.size <= offsets[other.name]
                assert before or offsets[other.name] + other.size <= offsets[one.name], (one, other)
    assert size <= sum(span.size for span in given_spans)


def test_a_chain_takes_two_buffers() -> None:
    chain = [Span(f"b{k}", 640, k, k + 1) for k in range(20)]
    assert placed(chain)[1] == 2 * 640


def test_a_small_one_goes_into_a_gap() -> None:
    found = [Span("long", 640, 0, 9), Span("early", 1280, 0, 2), Span("late", 1280, 4, 9), Span("small", 64, 1, 8)]
    assert placed(found)[1] == 640 + 1280 + 64


@settings(max_examples=300, deadline=None)
@given(spans())
def test_no_two_of_a_shared_range_live_at_the_same_time(given_spans: list[Span[int]]) -> None:
    found = taken(given_spans, {})
    for one in given_spans:
        for other in given_spans:
            if one is not other and found.get(one.name, one.name) == found.get(other.name, other.name):
                assert one.size == other.size and not one.meets(other), (one, other)
    assert not {*found.values()} & found.keys()


def test_a_chain_of_symbolic_sizes_takes_two_buffers() -> None:
    def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.mm(x, weight).relu()
        return x

    inputs = [torch.randn(8, 16), *(torch.randn(16, 16) for _ in range(6))]
    gm = trace_symbolic(chain, inputs)
    text = make_plan(lower_graph(gm, CPU).program, CPU, native=True).text()
    assert text.count(" = new ") == 3, text  # the result's is one of its own
    call = CpuBackend().compile(gm, [])
    for rows in (5, 8, 300):
        inputs[0] = torch.randn(rows, 16)
        torch.testing.assert_close(call(list(inputs))[0], chain(*inputs))


def numbers_between(x: torch.Tensor) -> torch.Tensor:
    sums = x.sum(1).cumsum(0)
    sums = (x + sums[:, None]).sum(1).cumsum(0)
    counts = (x + sums[:, None]).int().sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    counts = (x.int() + counts[:, None]).sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return (x.int() + counts[:, None]).sum(1, dtype=torch.int32)


def test_on_gpus_a_buffer_reuses_one_of_its_type() -> None:
    """There tensors may be handed to what launches: integers put into one of floats would be other bits."""
    graph = trace_symbolic(lambda x: (numbers_between(x),), [torch.randn(300, 310)])
    lowering = lower_graph(graph, GPU)
    program = lowering.program
    steps = place_buffers(list_steps(program, GPU), program, GPU, arenas=True).steps
    (run,) = (step for step in steps if isinstance(step, Run))
    kinds = {param.name: param.dtype for item in run.items for param in item.params}
    assert {kinds[name] for pair in run.shared for name in pair} == {"f32", "i32"}
    assert all(kinds[name] == kinds[first] for name, first in run.shared)


@settings(max_examples=300, deadline=None)
@given(spans(), spans())
def test_a_result_lends_its_bytes_until_it_is_written(inner: list[Span[int]], made: list[Span[int]]) -> None:
    results = [Span(f"result {one.name}", one.size, one.first, 99) for one in made]
    by_name = {one.name: one for one in (*inner, *results)}
    lent = lent_bytes(inner, results)
    for name, host in lent.items():
        assert by_name[name].size <= by_name[host].size and by_name[name].last < by_name[host].first
        others = [by_name[other] for other, place in lent.items() if place == host and other != name]
        assert not any(map(by_name[name].meets, others))


def test_nothing_is_needed_beside_a_result_that_is_made_last() -> None:
    """The first matmul lies where the last one will."""
    inputs = [torch.randn(32, 32), torch.randn(32, 32)]
    gm = trace(lambda x, w: ((y := x @ w).sum(0), y @ w @ w, x.t() @ w), inputs)
    steps = make_plan(lower_graph(gm, CPU).program, CPU, native=True).steps
    (run,) = (step for step in steps if isinstance(step, Run))
    assert run.shared and len(run.inner) < 2
    for found, wanted in zip(CpuBackend().compile(gm, inputs)(list(inputs)), gm(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def arena(function: Callable[..., torch.Tensor]) -> int:
    """Bytes of the arena of a graph of two 32x32 matrices, and of results that lend theirs; it is run as well."""
    inputs = [torch.randn(32, 32), torch.randn(32, 32)]
    gm = trace(function, inputs)
    (found,) = CpuBackend().compile(gm, inputs)(list(inputs))
    torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-4)
    steps = make_plan(lower_graph(gm, CPU).program, CPU, native=True).steps
    lending = {host for step in steps if isinstance(step, Run) for _, host in step.shared}
    arenas = [step.layout.numel for step in steps if isinstance(step, Allocate) and step.name.endswith(".arena")]
    return sum(arenas) + 32 * 32 * 4 * len(lending)


def test_results_lie_where_their_kernel_reads_for_the_last_time() -> None:
    place = 32 * 32 * 4
    assert arena(lambda x, w: torch.relu(x @ w) @ w) == place
    assert arena(lambda x, w: torch.softmax(x @ w, 1) @ w) == place
    assert arena(lambda x, w: torch.softmax(x @ w, 0) @ w) == place
    assert arena(lambda x, w: torch.relu(x @ w).flip(0) @ w) == 2 * place
    assert arena(lambda x, w: ((y := x @ w) - y.t()) @ w) == 2 * place
    assert arena(lambda x, w: ((y := x @ w) - y.sum(0)).t().contiguous() @ w) == 2 * place + 32 * 4
    assert arena(lambda x, w: torch.relu(y := x @ w) @ w @ y) >= 2 * place


def test_a_result_that_lives_on_lies_over_one_of_the_run() -> None:
    """Sums down its columns are stored behind it; a call reads it later."""
    inputs = [torch.randn(32, 32), torch.randn(32, 32)]

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w) * w.sin()
        return y.sum(0), y.cumprod(1)

    gm = trace(function, inputs)
    for found, wanted in zip(CpuBackend().compile(gm, inputs)(list(inputs)), function(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    steps = make_plan(lower_graph(gm, CPU).program, CPU, native=True).steps
    assert not any(isinstance(step, Run) and step.inner for step in steps)
    large = [step for step in steps if isinstance(step, Allocate) and step.layout.numel == 32 * 32]
    assert [step.reuse is None for step in large] == [True, False]
