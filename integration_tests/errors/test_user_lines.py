"""Errors, warnings, log lines, explanations and graph nodes name the user's line."""

import logging
import re
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import framesmith
from framesmith import FramesmithError, FramesmithWarning
from framesmith.reports.logs import TOPICS
from framesmith_guards import CompileContext


def helper(x):
    y = x.cos()
    print("helper")  # BREAK-HELPER
    return y + 1


def two_breaks(x):
    y = x.sin()
    print("one")  # BREAK-ONE
    y = helper(y)
    return y * 2


def line_of(mark: str) -> int:
    """The number of the line of this file that ends with the mark."""
    with open(__file__) as file:
        [number] = [at for at, text in enumerate(file, 1) if text.rstrip().endswith(f"# {mark}")]
    return number


BREAKING = {
    "print": lambda x: print("a") or x + 1,  # AT-print
    "tolist": lambda x: x * sorted(x.sin().tolist())[0],  # AT-tolist
    "item": lambda x: x.sin() * range(int(x.sum().item()) + 2)[1],  # AT-item
    "data": lambda x: x.sin() if x.sum() > 0 else x.cos(),  # AT-data
    "nonzero": lambda x: x.sin() if x.nonzero().shape[0] > 1 else x,  # AT-nonzero
    "numpy": lambda x: torch.from_numpy(x.sin().numpy()),  # AT-numpy
    "backward": lambda x: x.sin() + len(repr(x.cos())),  # AT-backward
    "id": lambda x: x.sin() + (id(x) > 0),  # AT-id
    "warn": lambda x: warnings.warn("careful", stacklevel=1) or x.sin(),  # AT-warn
}


@pytest.fixture(autouse=True)
def fresh():
    framesmith.reset()
    yield
    framesmith.set_logs()
    framesmith.reset()


@pytest.fixture
def records():
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record):
            kept.append(record)

    handler = Keep()
    logging.getLogger("framesmith").addHandler(handler)
    yield kept
    logging.getLogger("framesmith").removeHandler(handler)


def of_topic(records, topic):
    return [record for record in records if record.name == f"framesmith.{topic}"]


@pytest.mark.filterwarnings("ignore:careful")
@pytest.mark.parametrize("name", BREAKING)
def test_breaks_name_their_line(name, records):
    framesmith.set_logs("breaks")
    x = torch.rand(3)
    explained = framesmith.explain(BREAKING[name], x)
    broken = explained.of_kind("break")
    place = f"{__file__}:{line_of(f'AT-{name}')}"
    assert broken and all(f"{event.place.filename}:{event.place.lineno}" == place for event in broken)
    assert {record.place for record in of_topic(records, "breaks")} == {place}
    assert all(re.fullmatch(r"\d+/\d+(_\d+)?", str(record.compile_id)) for record in of_topic(records, "breaks"))


def test_a_break_in_an_inlined_helper_names_the_helper_and_its_caller():
    explained = framesmith.explain(two_breaks, torch.rand(3))
    lines = [event.place.lineno for event in explained.of_kind("break")]
    assert lines[:2] == [line_of("BREAK-ONE"), line_of("BREAK-HELPER")]
    text = str(explained)
    assert f"line {line_of('BREAK-HELPER')}, in helper\n" in text and 'print("helper")' in text
    assert "y = helper(y)" in text


def test_fullgraph_errors_name_the_line():
    with pytest.raises(RuntimeError, match=f"line {line_of('BREAK-HELPER')}, in helper"):
        framesmith.compile(helper, fullgraph=True)(torch.rand(3))


def broken_backend(gm, inputs):
    raise KeyError("no such kernel")


def computes(x):
    scale = 2
    return x.sin() * scale  # COMPUTES


@pytest.mark.parametrize("strict", [False, True])
def test_failures_of_a_backend_name_the_line(strict):
    compiled = framesmith.compile(computes, backend=broken_backend, strict=strict)
    x = torch.rand(3)
    if strict:
        with pytest.raises(FramesmithError, match=f"line {line_of('COMPUTES')}, in computes"):
            compiled(x)
        return
    with pytest.warns(FramesmithWarning, match=f"line {line_of('COMPUTES')}, in computes") as caught:
        assert torch.equal(compiled(x), computes(x))
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("COMPUTES"))


def test_failures_of_the_tracer_name_the_line(monkeypatch):
    from framesmith_dynamo.graph.builder import GraphBuilder

    monkeypatch.setattr(GraphBuilder, "ref", lambda *args: 1 / 0)
    with pytest.warns(FramesmithWarning, match="ZeroDivisionError") as caught:
        framesmith.compile(computes)(torch.rand(3))
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("COMPUTES"))


def scaled(x, scale):
    y = x.sin()
    return y * scale  # SCALED


def test_a_recompilation_is_logged_with_both_values_and_the_line_that_relies_on_it(records):
    framesmith.set_logs("recompiles")
    compiled = framesmith.compile(scaled, backend="eager")
    compiled(torch.rand(3), 2)
    compiled(torch.rand(3), 3)
    record, dynamic = of_topic(records, "recompiles")
    assert "scale" in dynamic.getMessage() and dynamic.compile_id == record.compile_id
    assert "scale" in record.getMessage() and "2" in record.getMessage() and "3" in record.getMessage()
    assert record.place == f"{__file__}:{line_of('SCALED')}" and str(record.compile_id).endswith("/1")


def test_the_recompile_limit_warns_at_the_line_that_relies_on_it():
    compiled = framesmith.compile(scaled, backend="eager", recompile_limit=1)
    compiled(torch.rand(3), 2)
    with pytest.warns(FramesmithWarning, match="compiled 1 times, the limit") as caught:
        compiled(torch.rand(3), 3)
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("SCALED"))


WORKLOADS = {
    "linear": torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU()),
    "conv": torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2, 2)), torch.nn.Conv2d(1, 2, 1), torch.nn.Flatten()),
    "attention": torch.nn.TransformerEncoderLayer(4, 2, 8),
    "function": computes,
    "two breaks": two_breaks,
    "no grad": torch.no_grad()(computes),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_graph_nodes_carry_a_user_stack(name):
    graphs, ids = [], []

    def keep(gm, inputs):
        graphs.append(gm)
        ids.append(str(CompileContext.current_compile_id()))
        return gm.forward

    framesmith.compile(WORKLOADS[name], backend=keep)(torch.rand(2, 4))
    nodes = [node for gm in graphs for node in gm.graph.nodes]
    assert nodes and all(node.stack_trace and 'File "' in node.stack_trace for node in nodes)
    assert all(re.fullmatch(r"\d+/\d+", one) for one in ids)


def test_every_topic_has_lines_with_an_id_and_a_line(records):
    framesmith.set_logs("+all")
    compiled = framesmith.compile(two_breaks)
    compiled(torch.rand(3))
    compiled(torch.rand(4, requires_grad=True))
    silent = [topic for topic in TOPICS if not of_topic(records, topic)]
    assert silent == ["torch"]  # which has lines where torch lacks something
    for record in records:
        assert record.place.startswith(f"{__file__}:"), (record.name, record.place, record.getMessage()[:200])


def test_warnings_of_backward_passes_stand_at_the_users_line():
    framesmith.reset()
    x = torch.rand(3, requires_grad=True)
    y = framesmith.compile(lambda x: checkpoint(torch.sin, x * x, use_reentrant=False).sum())(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.autograd.grad(y, x, create_graph=True)  # SECOND
        with framesmith.compile_backward():
            torch.autograd.grad(x.sin().sum(), x, create_graph=True)  # NOT-CAPTURED
    at = {str(one.message).partition(":")[0]: (one.filename, one.lineno) for one in caught}
    assert at.pop("the backward pass is not captured") == (__file__, line_of("NOT-CAPTURED"))
    assert list(at.values()) == [(__file__, line_of("SECOND"))], at


def test_a_mode_without_effect_warns_at_the_users_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        framesmith.compile(computes, backend="eager", mode="max-autotune")  # MODE
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, line_of("MODE"))]


def test_nothing_is_logged_when_off(records):
    framesmith.compile(two_breaks)(torch.rand(3))
    assert not records


def never_pays(x):
    print(end="")
    return x + 1


def test_functions_that_never_pay_are_logged_once(records):
    framesmith.set_logs("perf")
    callers = [eval(f"lambda x: never_pays(x.cos()) * {at}", globals()) for at in range(6)]

    def all_of_them(x):
        return [caller(x) for caller in callers]

    framesmith.compile(all_of_them, backend="eager")(torch.rand(3))
    explained = [
        record.getMessage() for record in of_topic(records, "perf") if record.getMessage().startswith("costly")
    ]
    assert len(explained) == framesmith.stats()["costly_functions"] == 1
    assert "never_pays" in explained[0] and "What to do" in explained[0] and "framesmith.disable" in explained[0]


def never_pays_for_explain(x):
    print(end="")
    return x + 1


def test_explain_names_functions_that_never_pay():
    callers = [eval(f"lambda x: never_pays_for_explain(x.cos()) * {at}", globals()) for at in range(6)]
    explained = framesmith.explain(lambda x: [caller(x) for caller in callers], torch.rand(3))
    [event] = explained.of_kind("costly")
    assert event.place.lineno == never_pays_for_explain.__code__.co_firstlineno and "print" in event.detail
    assert str(event) in str(explained)
