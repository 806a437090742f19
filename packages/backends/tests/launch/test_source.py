"""The launcher's Python function: readable, flat, and safe about strides."""

from __future__ import annotations

import gc

import pytest
import torch
from graphs.tracing import trace
from graphs.tracing_symbolic import trace_symbolic
from torch import fx

from framesmith_aten.contract import BoxedFn
from framesmith_backends import CpuBackend
from framesmith_backends.launch.llvm.engine import handle_offset, machine
from framesmith_backends.launch.source import LauncherText


def test_source_is_one_flat_function() -> None:
    x = torch.randn(4, 4)
    source = CpuBackend().explain(trace(lambda a: torch.relu(a @ a) + 1, [x])).source
    assert source.startswith("def call(args):\n")
    assert source.count("def ") == 1
    assert "run" in source
    assert source.rstrip().splitlines()[-1].strip().startswith("return (")


def test_a_body_is_compiled_once_and_no_later_one_gets_its_code() -> None:
    """A later body may have the address of one that nobody else holds."""
    made: list[str] = []

    def compile_body(body: fx.GraphModule) -> BoxedFn:
        name = next(iter(body.graph.nodes)).name
        made.append(name)
        return lambda args: [name]

    def body(number: int) -> fx.GraphModule:
        graph = fx.Graph()
        graph.output((graph.placeholder(f"operand_{number}"),))
        return fx.GraphModule({}, graph)

    text = LauncherText(compile_body=compile_body)
    for number in range(60):
        assert text.body(body(number))([]) == [f"operand_{number}"]
        gc.collect()
    kept = body(60)
    assert text.body(kept) is text.body(kept) and len(made) == 61


def test_unusual_values_are_passed_whole() -> None:
    x = torch.tensor([float("inf"), 1.0, float("nan")])
    function = lambda a: torch.nan_to_num(a, nan=float("inf"), posinf=-1.5).cumsum(0, dtype=torch.float64)  # noqa: E731
    (found,) = CpuBackend().compile(trace(function, [x]), [x])([x])
    assert torch.equal(found, function(x))


def test_a_result_with_other_strides_than_its_fake_is_still_right() -> None:
    x = torch.randn(6, 7)
    gm = trace(lambda a: torch.relu(a @ a.t()) + 1, [x])
    matmul = next(n for n in gm.graph.nodes if "mm" in str(n.target))
    matmul.meta["val"] = matmul.meta["val"].t().contiguous().t()
    (found,) = CpuBackend().compile(gm, [x])([x])
    torch.testing.assert_close(found, torch.relu(x @ x.t()) + 1)


VIEWS = {
    "view": lambda a: a.view(6, 4), "permute": lambda a: a.permute(2, 0, 1), "expand": lambda a: a[:1].expand(2, 3, 4),
    "unsqueeze": lambda a: a.unsqueeze(1), "squeeze": lambda a: a[:1].squeeze(0), "select": lambda a: a.select(1, 2),
    "diagonal": lambda a: a.diagonal(0, 1, 2), "unfold": lambda a: a.unfold(2, 2, 1),
    "as_strided": lambda a: a.as_strided((2, 2), (3, 1), 1),
    "split_with_sizes": lambda a: a.split([1, 2], 1)[1], "unbind": lambda a: a.unbind(1)[2],
}  # fmt: skip


#: Views that kernels do not read through.
UNKNOWN_OFFSETS = {"as_strided", "unfold"}


@pytest.mark.parametrize("name", sorted(VIEWS.keys() - UNKNOWN_OFFSETS))
def test_views_are_taken_by_their_offsets(name: str) -> None:
    """The sort is an ATen call, so that the view is needed as a tensor; its base is not."""
    x = torch.randn(3, 2, 5)
    function = lambda a: VIEWS[name](a.transpose(0, 1)[:, :, 1:]).sort(0)[0]  # noqa: E731
    if name == "view":
        function = lambda a: a.view(30).view(6, 5).sort(0)[0]  # noqa: E731
    source = CpuBackend().explain(trace(function, [x])).source
    assert source.count("_view(x0, ") == source.count("_view(") == 1
    assert not any(f".{method}(" in source for method in (name, "transpose", "slice"))
    torch.testing.assert_close(CpuBackend().compile(trace(function, [x]), [x])([x])[0], function(x))


@pytest.mark.parametrize("name", ["view", "permute", "unsqueeze", "unfold"])
def test_other_views_are_methods_of_their_tensors(name: str) -> None:
    """Views of dynamic shapes, and of unknown offsets."""
    x = torch.randn(5, 3, 4)
    function = lambda a: (a.view(-1, 4) if name == "view" else VIEWS[name](a)).sort(0)[0]  # noqa: E731
    gm = trace_symbolic(function, [x])
    assert f".{name}(" in CpuBackend().explain(gm).source
    torch.testing.assert_close(CpuBackend().compile(gm, [x])([x])[0], function(x))


def test_a_view_of_a_result_with_other_strides_than_its_fake_is_still_right() -> None:
    x = torch.randn(3, 6, 7)
    function = lambda a: torch.bmm(a, a.mT).select(1, 2).sort(0)[0]  # noqa: E731
    gm = trace(function, [x])
    matmul, view = (next(n for n in gm.graph.nodes if what in str(n.target)) for what in ("bmm", "select"))
    matmul.meta["val"] = matmul.meta["val"].mT.contiguous().mT
    view.meta["val"] = matmul.meta["val"].select(1, 2)
    torch.testing.assert_close(CpuBackend().compile(gm, [x])([x])[0], function(x))


def test_inputs_with_gradients_leave_no_graph() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    found = CpuBackend().compile(trace(lambda a: (a @ a, a.tanh()), [x.detach()]), [x])([x])
    assert not any(t.requires_grad for t in found)


def test_handles_are_where_they_are_said_to_be() -> None:
    assert handle_offset() == machine().bytes_to_handle


def test_the_same_text_is_compiled_once() -> None:
    x = torch.randn(31)
    gm = trace(lambda a: a * 3 + 2, [x])
    gc.collect()
    before = len(machine().modules)
    first = CpuBackend().compile(gm, [x])
    second = CpuBackend().compile(gm, [x])
    torch.testing.assert_close(first([x])[0], second([x])[0])
    assert len(machine().modules) == before + 1


def test_machine_code_lives_as_long_as_a_function_that_enters_it() -> None:
    x = torch.randn(37)
    kept = CpuBackend().compile(trace(lambda a: a * 3 + 2, [x]), [x])
    kept([x])
    gc.collect()
    before = len(machine().modules)
    for k in range(20):
        CpuBackend().compile(trace(lambda a, k=k: a * k + 7, [x]), [x])([x])
    gc.collect()
    assert len(machine().modules) == before
    torch.testing.assert_close(kept([x])[0], x * 3 + 2)


@pytest.mark.parametrize("made_under", ["cpu", "meta"])
def test_buffers_are_where_the_graph_has_them_whatever_the_default_device_is(made_under: str) -> None:
    x = torch.randn(4, 4)
    function = lambda a: (torch.relu(a @ a) + 1, a.bfloat16() + 0.3)  # noqa: E731
    gm = trace(function, [x])
    with torch.device(made_under):
        run = CpuBackend().compile(gm, [x])
    with torch.device("meta"):
        found = run([x])
    for one, wanted in zip(found, function(x), strict=True):
        torch.testing.assert_close(one, wanted)


def test_a_name_of_the_functions_own_is_no_global() -> None:
    """The eighth unbacked number is u8, and so is the type of an arena."""
    writer = LauncherText()
    assert writer.identifier("$u8") != writer.bind("u8", torch.uint8)
    assert writer.bind("u16", torch.uint16) != writer.identifier("$u16")
