"""Operators lowered or kept as ATen calls, and the reasons of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs.tracing import trace

from framesmith_backends import CpuBackend
from framesmith_backends.lower.graph import lower_graph, why_not_functional
from framesmith_backends.lower.registry import RULES, VIEWS, rule
from framesmith_backends.lower.scope import promoted
from framesmith_backends.lower.tensor import whole
from framesmith_backends.target import CPU

REASONS: tuple[tuple[str, Callable[..., torch.Tensor], list[torch.Tensor], str], ...] = (
    ("matmul", lambda x: x @ x, [torch.randn(3, 3)], "no rule"),
    ("double", lambda x: x.tan(), [torch.randn(3).double()], "tan in float64"),
    ("complex", lambda x: x * 2, [torch.randn(3, dtype=torch.complex64)], "dtype torch.complex64"),
    ("division", lambda x: x // -1, [torch.tensor([4])], "may be, 0 or -1"),
    ("empty", lambda x: x * 2, [torch.randn(0, 3)], "no elements"),
    ("nothing", lambda x: x.sum(0), [torch.randn(0, 3)], "no elements"),
    ("power", lambda x: x**5, [torch.tensor([3])], "an integer power"),
)


@pytest.mark.parametrize(("function", "inputs", "reason"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS])
def test_calls_say_why(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], reason: str) -> None:
    gm = trace(function, inputs)
    assert any(reason in note for note in lower_graph(gm, CPU).notes.values())
    (found,) = CpuBackend().compile(gm, inputs)(list(inputs))
    torch.testing.assert_close(found, function(*inputs))


def test_views_make_no_definitions() -> None:
    x = torch.randn(4, 6)
    low = lower_graph(trace(lambda a: a.t().reshape(3, 8)[1].unsqueeze(0).expand(2, 8) + 1, [x]), CPU)
    assert [d.origin.split(": ")[1] for d in low.program.defs.values()][-1] == "aten.add.Tensor"
    assert all("view" in note for note in low.notes.values())


def test_promotion_is_torchs() -> None:
    dtypes = {"f32": torch.float32, "f16": torch.float16, "i64": torch.int64, "u8": torch.uint8, "b1": torch.bool}
    operands: list[tuple[object, object]] = [(2, 2), (2.5, 2.5), (True, True)]
    for name, dtype in dtypes.items():
        operands += [(whole("x", shape, name), torch.ones(shape, dtype=dtype)) for shape in ((), (3,))]
    names = {v: k for k, v in dtypes.items()}
    for mine, theirs in operands:
        for other_mine, other_theirs in operands:
            if isinstance(theirs, torch.Tensor) or isinstance(other_theirs, torch.Tensor):
                wanted = torch.result_type(theirs, other_theirs)  # type: ignore[call-overload]
                assert promoted(mine, other_mine) == names.get(wanted, str(wanted))  # type: ignore[arg-type]


def test_one_rule_for_an_operator() -> None:
    assert not set(RULES) & set(VIEWS)
    with pytest.raises(ValueError, match="two lowering rules"):
        rule("relu")(lambda s, x: x)


def test_registered_names_exist() -> None:
    for key in (*RULES, *VIEWS):
        namespace, name, overload = key.split(".")
        assert hasattr(getattr(getattr(torch.ops, namespace), name), overload), key


def test_a_mutation_in_the_middle_runs_eagerly() -> None:
    x = torch.randn(4)
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    a.meta["val"] = x
    changed = graph.call_function(torch.ops.aten.add_.Tensor, (a, 1))
    after = graph.call_function(torch.ops.aten.mul.Tensor, (changed, 2))
    graph.output((after,))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    problem = why_not_functional(gm)
    assert problem is not None
    assert "after a mutation" in problem
    assert CpuBackend().why_not(gm) == problem
    state = x.clone()
    (found,) = CpuBackend().compile(gm, [state])([state])
    assert torch.equal(found, (x + 1) * 2)
    assert torch.equal(state, x + 1)


def test_symbolic_shapes_run_as_calls() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    function = lambda a: F.relu(a) * a.shape[0] + a.sum()  # noqa: E731
    gm = make_fx(function, tracing_mode="symbolic")(torch.randn(5, 3))
    call = CpuBackend().compile(gm, [torch.randn(5, 3)])
    for rows in (5, 7):
        x = torch.randn(rows, 3)
        result = call([x])
        torch.testing.assert_close(result[0], function(x))


def test_a_rule_that_fails_costs_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(s: object, x: object) -> object:
        s.compute(lambda v: v, x, dtype="f32")  # type: ignore[attr-defined]
        raise KeyError("a defect")

    monkeypatch.setitem(RULES, "aten.sin.default", broken)  # type: ignore[arg-type]
    x = torch.randn(8)
    gm = trace(lambda a: a.sin() * 2 + a.exp(), [x])
    with pytest.raises(KeyError):
        CpuBackend().compile(gm, [x])
    reported: list[tuple[str, Exception]] = []
    call = CpuBackend().compile(gm, [x], on_error=lambda where, error: reported.append((where, error)))
    torch.testing.assert_close(call([x])[0], x.sin() * 2 + x.exp())
    ((where, error),) = reported
    assert "sin" in where and isinstance(error, KeyError)
    low = lower_graph(gm, CPU, on_error=lambda where, error: None)
    assert "its rule failed" in low.notes["sin_default"]
    assert {d.origin.split(": ")[1] for d in low.program.defs.values()} >= {"aten.exp.default", "aten.add.Tensor"}


@pytest.mark.parametrize("function", [torch.clamp_min, torch.clamp_max])
@pytest.mark.parametrize("bound", [False, True])
def test_bools_are_clamped_by_tensors_only(function: Callable[..., torch.Tensor], bound: bool) -> None:
    x, y = torch.tensor([True, False]), torch.tensor(bound)
    (found,) = CpuBackend().compile(trace(function, [x, y]), [x, y])([x, y])
    assert torch.equal(found, function(x, y))
    with pytest.raises(NotImplementedError):
        CpuBackend().compile(trace(lambda a: function(a, bound), [x]), [x])([x])


def test_the_one_dimension_of_a_number_may_be_flipped() -> None:
    x = torch.tensor(3.0)
    gm = trace(lambda x: (x.flip((-1,)) * 2, x.flip(()) * 3), [x])
    assert [one.item() for one in CpuBackend().compile(gm, [x])([x])] == [6.0, 9.0]
    assert "flip" not in CpuBackend().explain(gm).source
