"""Effects of operators under torch calls, recorded on fakes: writes, random numbers, failures on data, refusals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException

from framesmith_aten.checks import kernel_probes
from framesmith_aten.errors import TraceUnsupported
from framesmith_aten.fakes.modes import new_fake_mode
from framesmith_aten.meta import EFFECTS, EXAMPLE, Effects
from framesmith_aten.recording import KernelRefuses, OperatorLog, RecordingFailed, effects_of

T = torch.tensor
NAN = torch.full((4, 4), float("nan"))

#: name -> (target, arguments that fakes take and real tensors do not)
FAILING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (F.embedding, (T([5]), torch.zeros(4, 2))),
    "embedding_bag": (F.embedding_bag, (T([5, 1]), torch.zeros(4, 2), T([0, 1]))),
    "getitem": (torch.Tensor.__getitem__, (torch.zeros(4), T([5]))),
    "gather": ("gather", (torch.zeros(4), 0, T([5]))),
    "scatter": ("scatter", (torch.zeros(4), 0, T([5]), 1.0)),
    "index_select": ("index_select", (torch.zeros(4), 0, T([5]))),
    "index_add": ("index_add", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "index_copy_": ("index_copy_", (torch.zeros(4), 0, T([5]), torch.ones(1))),
    "take": (torch.take, (torch.zeros(4), T([5]))),
    "cross_entropy": (F.cross_entropy, (torch.zeros(2, 4), T([1, 5]))),
    "nll_loss": (F.nll_loss, (torch.zeros(2, 4), T([1, 5]))),
    "multi_margin_loss": (F.multi_margin_loss, (torch.zeros(2, 4), T([1, 5]))),
    "binary_cross_entropy": (F.binary_cross_entropy, (torch.full((2,), 2.0), torch.ones(2))),
    "multinomial": (torch.multinomial, (-torch.ones(4), 1)),
    "bernoulli": (torch.bernoulli, (torch.full((2,), 2.0),)),
    "poisson": (torch.poisson, (-torch.ones(4),)),
    "normal": (torch.normal, (0.0, -torch.ones(4))),
    "inv": (torch.linalg.inv, (torch.zeros(4, 4),)),
    "cholesky": (torch.linalg.cholesky, (torch.zeros(4, 4),)),
    "solve": (torch.linalg.solve, (torch.zeros(4, 4), torch.zeros(4, 4))),
    "eigh": (torch.linalg.eigh, (NAN,)),
    "svd": (torch.linalg.svd, (NAN,)),
    "matrix_power": (torch.linalg.matrix_power, (torch.zeros(4, 4), -1)),
    "floor_divide": (torch.floor_divide, (T([1]), T([0]))),
    "remainder": (torch.remainder, (T([1]), T([0]))),
    "fmod": ("fmod", (T([1]), 0)),
    "fake_quantize": (
        torch.fake_quantize_per_channel_affine,
        (torch.zeros(1, 2), torch.ones(1), T([900]).int(), 0, 0, 255),
    ),
    "histc": (torch.histc, (torch.full((3,), float("inf")), 4)),
    "max_unpool1d": (F.max_unpool1d, (torch.zeros(1, 1, 2), T([[[0, 9]]]), 2)),
    "_assert_async": (torch._assert_async, (torch.zeros(1),)),
}


def effects(target: Any, *args: Any, inference: bool = False) -> Effects:
    """Return the call's effects on fakes; written tensors by position, None for those made under the call."""
    mode = new_fake_mode()
    fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    log = OperatorLog()
    with torch.inference_mode(inference), mode, log:
        getattr(fakes[0], target)(*fakes[1:]) if isinstance(target, str) else target(*fakes)
    seen = log.effects
    seen.written = [next((at for at, fake in enumerate(fakes) if fake is one), None) for one in seen.written]  # type: ignore[misc]
    return seen


def call(target: Any, args: tuple[Any, ...]) -> Any:
    return getattr(args[0], target)(*args[1:]) if isinstance(target, str) else target(*args)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", FAILING)
def test_what_fails_on_data_is_known(name: str, inference: bool) -> None:
    target, args = FAILING[name]
    with pytest.raises((RuntimeError, IndexError)):
        call(target, args)
    try:
        assert effects(target, *args, inference=inference).may_fail
    except KernelRefuses:  # the number is known, not only the type
        pass


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "target", [torch.add, torch.matmul, lambda *xs: torch.cat(xs), lambda x, _: F.gelu(x), "view_as"]
)
def test_arithmetic_and_views_are_harmless(target: Any, inference: bool) -> None:
    seen = effects(target, torch.ones(2, 2), torch.ones(2, 2), inference=inference)
    assert not seen.forbid_removal and not seen.reshaped


X = torch.ones(3, 4)

#: (target, arguments) -> positions of what is written
WRITES: list[tuple[Any, tuple[Any, ...], set[Any]]] = [
    ("add_", (X, 1), {0}),
    ("__setitem__", (X, 0, 7.0), {None}),
    (lambda x: x.data.add_(1), (X,), {None}),
    (lambda x: x[1].mul_(2), (X,), {None}),
    (lambda x, out: torch.add(x, 1, out=out), (X, X.clone()), {1}),
    (lambda x: F.relu(x, inplace=True), (X,), {0}),
    (lambda x, m, v: F.batch_norm(x, m, v, training=True), (X, torch.zeros(4), torch.ones(4)), {1, 2}),
    (lambda x, m, v: F.batch_norm(x, m, v), (X, torch.zeros(4), torch.ones(4)), set()),
    (lambda *xs: torch._foreach_add_(list(xs), 1), (X, X.clone()), {0, 1}),
    (F.relu, (X,), set()),
]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("at", range(len(WRITES)))
def test_writes_are_seen(at: int, inference: bool) -> None:
    target, args, positions = WRITES[at]
    assert set(effects(target, *args, inference=inference).written) == positions


@pytest.mark.parametrize("inference", [False, True])
def test_changes_of_metadata_are_seen(inference: bool) -> None:
    assert effects("t_", X, inference=inference).reshaped
    assert effects("squeeze_", X, inference=inference).reshaped
    assert not effects("add_", X, 1, inference=inference).reshaped


lstm = torch.nn.LSTM(2, 2, 2, dropout=0.5)


def run_lstm(x: torch.Tensor, *weights: torch.Tensor, dropout: float = 0.5) -> Any:
    zeros = torch.zeros(2, 1, 2)
    return torch.lstm(x, (zeros, zeros), list(weights), True, 2, dropout, True, False, False)


@pytest.mark.parametrize("inference", [False, True])
def test_random_numbers_are_seen_wherever_they_are_drawn(inference: bool) -> None:
    weights = [weight.detach() for weight in lstm.parameters()]
    drawing: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (F.dropout, (X,)),
        (torch.rand, (3,)),
        (lambda: torch.empty(3).normal_(), ()),
        (lambda: torch.binomial(torch.full((3,), 10.0), torch.full((3,), 0.5)), ()),
        (torch._standard_gamma, (X,)),
        (F.gumbel_softmax, (X,)),
        (F.rrelu, (X, 0.1, 0.3, True)),
        (run_lstm, (torch.ones(3, 1, 2), *weights)),
    ]
    for target, args in drawing:
        seen = effects(target, *args, inference=inference)
        assert seen.random and seen.forbid_removal, target
    assert not effects(F.dropout, X, 0.5, False, inference=inference).random


def test_operators_that_give_nothing_are_kept() -> None:
    assert effects(torch._assert_async, torch.ones(1)).irreversible


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("target", "args"),
    [
        (lambda x: torch.softmax(x, -1), (X.long(),)),
        (lambda x: x - 1, (X > 0,)),
        (F.relu, (X > 0,)),
        (torch.matmul, (X.double(), torch.eye(4))),
        (lambda x: x.mul_(2), (X > 0,)),
        (lambda x: x.masked_fill(x > 0, -1e9), (X.half(),)),
        (lambda x: x.clamp(max=300), (X.to(torch.uint8),)),
        (lambda x: x[:2].add_(x[1:]), (X,)),
        (lambda x: x.expand(3, 3, 4).add_(1), (X,)),
    ],
)
def test_refusals_of_real_kernels(target: Any, args: tuple[Any, ...], inference: bool) -> None:
    try:
        with torch.inference_mode(inference):
            target(*args)
    except (RuntimeError, NotImplementedError) as error:
        real = str(error)
    else:  # as `clamp` of uint8 with a bound of 300 in some releases
        effects(target, *args, inference=inference)
        pytest.skip("this torch takes it")
    with pytest.raises(KernelRefuses) as ours:
        effects(target, *args, inference=inference)
    assert real.splitlines()[0] in str(ours.value)


def test_what_kernels_take_is_not_refused() -> None:
    for target, args in [
        (lambda x: x + 300, (X.to(torch.uint8),)),
        (lambda x: x * 1e6, (X.half(),)),
        (lambda x: x.add_(x), (X.clone(),)),
        (lambda x: x[:1].add_(x[1:2]), (X.clone(),)),
        (lambda x, w: F.conv2d(x, w, padding=1), (torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3))),
        (lambda x: F.layer_norm(x, (4,)), (X,)),
        (lambda q: F.scaled_dot_product_attention(q, q, q), (torch.ones(2, 4, 8, 16),)),
    ]:
        call(target, args)
        assert not effects(target, *args).unproven or target.__code__.co_names[-1] == "scaled_dot_product_attention"


def test_the_trial_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    for inference in (False, True):
        effects(lambda x: torch.softmax(x, -1) + torch.rand(4), X, inference=inference)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


TRANSPOSED = torch.randn(3, 5, 2).permute(0, 2, 1)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("target", "args"),
    [
        (lambda x: torch.pow(0.25, x), (TRANSPOSED,)),
        (lambda x: x + 1, (TRANSPOSED,)),
        (torch.logaddexp, (TRANSPOSED, torch.ones(2, 5))),
        (torch.heaviside, (TRANSPOSED, torch.ones(2, 5))),
        (torch.logical_and, (TRANSPOSED, torch.ones(1, 5))),
        (torch.div, (torch.ones(5), TRANSPOSED)),
        (F.logsigmoid, (TRANSPOSED,)),
        (lambda x: torch.pow(0.25, x), (torch.randn(300, 20, 60).permute(2, 0, 1),)),
    ],
)
def test_results_are_laid_out_as_real_ones(target: Any, args: tuple[Any, ...], inference: bool) -> None:
    mode = new_fake_mode()
    with torch.inference_mode(inference):
        real = target(*args)
    fakes = [mode.from_tensor(arg) for arg in args]
    with torch.inference_mode(inference), mode, OperatorLog():
        fake = target(*fakes)
    assert fake.shape == real.shape and fake.stride() == real.stride()


@pytest.mark.parametrize(
    ("schema", "external"),
    [("(Tensor x) -> ()", True), ("(Tensor(a!) x) -> ()", False), ("(Tensor x) -> Tensor", False)],
)
def test_an_operator_that_gives_and_writes_nothing_acts_elsewhere(schema, external):
    with torch.library._scoped_library("aten_recording", "FRAGMENT") as made:
        made.define("act" + schema)
        made.impl("act", lambda x: x.clone() if "-> Tensor" in schema else None, "Meta")
        assert effects(torch.ops.aten_recording.act, torch.ones(2)).external == external


def test_a_value_from_a_custom_operator_is_not_known():
    with torch.library._scoped_library("aten_recording", "FRAGMENT") as made:
        made.define("count(Tensor x) -> int")
        made.impl("count", lambda x: 0, "Meta")
        mode = new_fake_mode()
        x = mode.from_tensor(torch.ones(2))
        with mode, OperatorLog(), pytest.raises(DataDependentOutputException):
            torch.ops.aten_recording.count(x)


@pytest.mark.parametrize(
    ("schema", "args", "why"),
    [
        ("(Tensor(a!) x, Tensor y) -> ()", lambda x: (x[:2], x[1:]), "another argument shows"),
        ("(Tensor(a!)[] xs) -> ()", lambda x: ([x[:2], x[1:]],), "another argument shows"),
        ("(Tensor(a!) x, Tensor(b) y) -> Tensor(b)", lambda x: (x, x + 1), "its result shows"),
        ("(Tensor(a!) x, Tensor y) -> ()", lambda x: (x, (x + 1).requires_grad_()), "its derivative"),
    ],
)
def test_writes_that_cannot_be_traced(schema: str, args: Any, why: str) -> None:
    with torch.library._scoped_library("aten_recording", "FRAGMENT") as made:
        made.define("write" + schema)
        made.impl("write", lambda *args: args[-1] if "-> Tensor" in schema else None, "Meta")
        mode = new_fake_mode()
        taken = args(mode.from_tensor(torch.ones(3)))
        with mode, OperatorLog(), pytest.raises(TraceUnsupported, match=why):
            torch.ops.aten_recording.write(*taken)


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.view(4).zero_(), lambda x: torch.sin(x, out=x)])
def test_inference_tensors_are_written_to_in_inference_mode_alone(write):
    with new_fake_mode():
        with torch.inference_mode():
            x = torch.ones(4)
            with OperatorLog() as log:
                write(x)
            assert log.effects.written
        with torch.no_grad(), OperatorLog(), pytest.raises(KernelRefuses, match="outside of inference mode"):
            write(x)


@pytest.mark.parametrize("function", ["verdict", "as_laid_out"])
def test_a_failure_to_find_out_is_no_error_of_the_operator(function, monkeypatch):
    def fail(*args):
        raise ValueError("planted")

    monkeypatch.setattr(kernel_probes, function, fail)
    with new_fake_mode(), OperatorLog():
        with pytest.raises(RecordingFailed, match=r"aten\.ones\.default: ValueError: planted"):
            torch.ones(2)


def test_a_device_is_returned_whatever_fails(monkeypatch):
    """Torch asks for it where an exception ends the process: nothing is noted on the way."""
    with new_fake_mode():
        w = torch.ones(2, requires_grad=True)

    def fail(log, op, *args):
        raise ValueError("planted")

    monkeypatch.setattr(OperatorLog, "_noted", fail)
    with w.fake_mode, OperatorLog(), pytest.raises(RecordingFailed, match=r"aten\.mul"):
        w * 1


def test_an_error_of_the_operator_goes_on_as_it_is():
    with new_fake_mode(), OperatorLog(), pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert type(caught.value) is RuntimeError


SHIFTED = {
    "rows": lambda x: x.t().mul_(x.t()[0]),
    "columns": lambda x: x[:, 1:].add_(x[:, :-1]),
    "copy": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "out": lambda x: torch.add(x[:, 1:], 1, out=x[:, :-1]),
    "one after the other": lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]]),
    "the same twice": lambda x: torch._foreach_add_([x[0], x[0]], 1),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_what_is_read_after_it_was_written_is_refused(name):
    SHIFTED[name](torch.ones(4, 4))
    with new_fake_mode(), OperatorLog():
        x = torch.ones(4, 4)
        with pytest.raises((TraceUnsupported, KernelRefuses), match="memory"):
            SHIFTED[name](x)


def test_what_is_read_before_it_is_written_is_taken():
    with new_fake_mode(), OperatorLog() as log:
        x = torch.ones(4, 4)
        x.add_(x)
        x[:, :2].add_(x[:, 2:])
        x[0].copy_(x[1])
        torch._foreach_mul_([x[0], x[1]], [x[0], x[1]])
    assert log.effects.written


@pytest.mark.parametrize("shapes", [((5,), (4,)), ((5, 3), (5, 2)), ((2, 1, 3), (4, 2))], ids=str)
def test_a_mask_that_does_not_fit_is_refused_as_its_operator_does(shapes):
    def select():
        chosen, mask = map(torch.ones, shapes)
        return torch.masked_select(chosen, mask > 0)

    with pytest.raises(RuntimeError, match="must match"):
        select()
    with new_fake_mode(), OperatorLog(), pytest.raises(RuntimeError, match="roadcast"):
        select()


def test_what_acts_outside_of_tensors_is_neither_run_nor_tried(capfd: pytest.CaptureFixture[str]) -> None:
    log = OperatorLog()
    with new_fake_mode(), log:
        torch.ops.aten._print("once for each call")
    assert log.effects.irreversible
    assert capfd.readouterr().out == ""


def test_custom_operators_that_give_views_are_refused() -> None:
    library = torch.library.Library("framesmith_recording", "FRAGMENT")
    library.define("shown(Tensor(a) x) -> Tensor(a)")
    library.impl("shown", lambda x: x.view(-1), "Meta")
    mode = new_fake_mode()
    with mode, OperatorLog(), pytest.raises(TraceUnsupported, match="custom-mutation"):
        torch.ops.framesmith_recording.shown(torch.empty(2))


def test_a_call_does_what_was_noted_of_it_and_without_a_note_anything() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    noted, unknown = graph.call_function(torch.sin, (x,)), graph.call_method("sin", (x,))
    EFFECTS.set(noted, Effects(random=True))
    assert effects_of(noted).random and not effects_of(noted).may_fail
    assert effects_of(unknown).may_fail and effects_of(unknown).forbid_removal
    for none in (x, graph.get_attr("weight"), graph.output(x)):
        assert not effects_of(none).forbid_removal


def test_functions_of_numbers_need_no_note_and_those_of_tensors_do() -> None:
    with new_fake_mode():
        tensor = torch.zeros(4)
    graph = fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    more, sum_, unknown = (graph.call_function(operator.add, (one, 1)) for one in (size, x, x))
    EXAMPLE.set(more, 5)
    EXAMPLE.set(sum_, tensor)
    assert [effects_of(one).forbid_removal for one in (size, more, sum_, unknown)] == [False, False, True, True]
