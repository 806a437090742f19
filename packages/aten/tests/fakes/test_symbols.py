"""Symbols as torch's own, made without its imports; numbers opaque to sympy; their guards."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.value_ranges import ValueRanges

from framesmith_aten.fakes import new_fake_mode, symbols
from framesmith_aten.fakes.symbols import (
    attach_shape_env,
    computed_number,
    specialised_at,
    symbolic_fake,
    symbolic_number,
)
from framesmith_aten.symbolic import hint_or_none
from framesmith_guards import Guard, GuardError, LocalSource, Location, TensorSpec, compile_guards, located
from framesmith_guards.kinds.shapes import EXACT
from framesmith_guards.symbolic_guards import shape_guards, to_torch
from tools.warm_process import run_program

X = LocalSource("x")

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "pointwise": lambda x, y: (x + y).relu() * 2,
    "matmul": lambda x, y: x @ y.t(),
    "row": lambda x, y: torch.softmax(x, -1).sum(0),
    "views": lambda x, y: x.t().reshape(-1).view(x.shape[1], x.shape[0])[1:],
    "cat": lambda x, y: torch.cat([x, y, x[:1]]),
    "layer norm": lambda x, y: torch.nn.functional.layer_norm(x, (x.shape[1],)),
    "split": lambda x, y: x.unsqueeze(0).expand(3, -1, -1).contiguous().unbind(0),
    "order": lambda x, y: x.sort(1).indices.to(torch.int32),
    "factories": lambda x, y: torch.zeros(x.shape[0] * 2, 3, dtype=torch.float64),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "parts": lambda x, y: [*x.split(2, 1), *x.chunk(2, 1), *x.t().unbind(), *torch.unsafe_chunk(y, 2, 1)],
    "several views": lambda x, y: [x.view(-1), x.view(-1), x.t(), x[1:, ::2], y.diagonal(), y.expand(2, -1, -1)],
    "views of bytes": lambda x, y: [
        x.view(torch.int32),
        y.detach(),
        torch.ops.aten.alias(y),
        x.unfold(1, 3, 2),
        x.squeeze(),
    ],
    "views by strides": lambda x, y: [x.as_strided((2, 2), (1, 2)), x[1:].as_strided((2, 2), (2, 1))],
    "views of views": lambda x, y: [x[1:].view(-1)[2:], x[2:].view(-1)[2:], x.select(0, 1), x.movedim(0, 1)[1]],
    "padding": lambda x, y: torch.nn.functional.pad(x, (1, 2)),
}


def layouts(result: Any, operands: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Sizes, strides, offsets and dtypes of a result, symbols named as they come, and whose memory it has."""
    tensors = result if isinstance(result, tuple | list) else (result,)
    storages = [operand.untyped_storage()._cdata for operand in operands]

    def facts(t: torch.Tensor) -> tuple[Any, ...]:
        numbers = (tuple(t.shape), t.stride(), t.storage_offset())
        shared = [at for at, storage in enumerate(storages) if storage == t.untyped_storage()._cdata]
        version = None if t.is_inference() else t._version
        return (str(numbers), t.dtype, shared, t._is_view(), t.is_inference(), version)

    return [facts(t) for t in tensors]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_give_what_they_give_with_torchs_own(name: str, inference: bool) -> None:
    do = OPERATIONS[name]
    light = new_fake_mode()
    own = FakeTensorMode(shape_env=ShapeEnv())
    real = (torch.ones(5, 7), torch.ones(5, 7))
    ours = [symbolic_fake(light, tensor, LocalSource(f"x{at}"), (0, 1)) for at, tensor in enumerate(real)]
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DUCK] * 2)
    theirs = [
        own.from_tensor(tensor, source=to_torch(LocalSource(f"x{at}")), symbolic_context=context)
        for at, tensor in enumerate(real)
    ]
    for _ in range(3):  # the second time it is remembered
        with light, torch.inference_mode(inference):
            found = do(*ours)
        with own, torch.inference_mode(inference):
            expected = do(*theirs)
        assert layouts(found, ours) == layouts(expected, theirs)
    assert [str(each.expr) for each in light.shape_env.guards] == [str(each.expr) for each in own.shape_env.guards]


SCRIPT = """
import sys, torch
from framesmith_aten.fakes import new_fake_mode
from framesmith_guards import LocalSource
from framesmith_aten.fakes.symbols import symbolic_fake, symbolic_number
mode = new_fake_mode()
x = symbolic_fake(mode, torch.ones(5, 7), LocalSource("x"), (0, 1))
part = symbolic_fake(mode, torch.ones(9, 7, requires_grad=True)[1:4], LocalSource("y"), (0,))
n = symbolic_number(mode, 3, LocalSource("n"))
with mode:
    y = torch.softmax(x @ x.t() + n, -1).sum() + part.sum()
assert x.shape[0] > 2 and int(n) == 3
print([name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))])
"""


def test_a_shape_env_is_made_lightly_by_the_torch_that_is_installed() -> None:
    """One whose internals have moved gets torch's own, two seconds later; so would a mistake in making the class."""
    assert type(symbols.new_shape_env()) is symbols._light_env_class()


def test_a_shape_env_of_a_torch_whose_internals_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise AttributeError("moved")

    monkeypatch.setattr(symbols, "_light_env_class", fails)
    mode = new_fake_mode()
    fake = symbolic_fake(mode, torch.zeros(4), X, [0])
    assert computed_number(mode, "exact_add", [fake.shape[0], 2]) == 6


def test_nothing_that_is_replaced_is_imported() -> None:
    done = run_program(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_equal_sizes_share_a_symbol_and_ranges_have_their_own() -> None:
    mode = new_fake_mode()
    x = symbolic_fake(mode, torch.ones(5, 5, 1, 0), X, range(4))
    assert x.shape[0].node.expr is x.shape[1].node.expr
    assert x.shape[2:] == (1, 0)
    y = symbolic_fake(mode, torch.ones(5), LocalSource("y"), (0,), ranges={0: (2, 9)})
    assert y.shape[0].node.expr is not x.shape[0].node.expr
    bounds = mode.shape_env.var_to_range[y.shape[0].node.expr]
    assert (bounds.lower, bounds.upper) == (2, 9)
    with pytest.raises(GuardError, match="dimension 0 has size 5, not one from 6 to 9"):
        symbolic_fake(mode, torch.ones(5), LocalSource("z"), (0,), ranges={0: (6, 9)})


def test_a_view_keeps_its_strides_and_a_base_with_history_is_kept() -> None:
    mode = new_fake_mode()
    plain = symbolic_fake(mode, torch.ones(9, 4)[2:, 1:], X, (0,))
    assert plain.stride() == (4, 1) and plain.shape[1] == 3
    base = torch.ones(9, 4, requires_grad=True)
    with_history = symbolic_fake(mode, base[2:], LocalSource("y"), (0,))
    assert with_history._base is not None and with_history.requires_grad and not with_history.is_leaf


def check_of(mode: FakeTensorMode, tensors: dict[str, tuple[torch.Tensor, Any]], numbers: dict[str, Any]) -> Any:
    """The check of what a trace with these inputs relies on."""
    guards = [
        Guard(LocalSource(name), "TENSOR_MATCH", TensorSpec.of(real, like=fake))
        for name, (real, fake) in tensors.items()
    ]
    guards += [Guard(LocalSource(name), "TYPE_MATCH", type(hint_or_none(number))) for name, number in numbers.items()]
    guards += shape_guards(
        mode.shape_env,
        [(LocalSource(name), fake) for name, (_, fake) in tensors.items()],
        [(LocalSource(name), number) for name, number in numbers.items()],
    )
    return compile_guards(guards, (*tensors, *numbers))


def test_computed_numbers_are_guarded_by_computing_them_again() -> None:
    mode = new_fake_mode()
    rate, steps = symbolic_number(mode, 0.3, LocalSource("rate")), symbolic_number(mode, 9, LocalSource("steps"))
    scaled = computed_number(mode, "exact_mul", (rate, 0.1))
    total = computed_number(mode, "exact_add", (scaled, steps))
    whole = computed_number(mode, "exact_int", (total,))
    assert hint_or_none(total) == 0.3 * 0.1 + 9
    with located(lambda: Location("user.py", 3, "train")):
        assert total > 3.0
        assert whole == 9
    check = check_of(mode, {}, {"rate": rate, "steps": steps})
    assert check((0.7, 9), NOTHING) and not check((0.7, 10), NOTHING) and not check((11.0, 9), NOTHING)
    placed = [guard.location for guard in check.guards if guard.kind.name == "SHAPE" and guard.location is not None]
    assert placed and placed[0].lineno == 3


def test_the_order_of_float_sums_is_the_programs() -> None:
    mode = new_fake_mode()
    a, b = symbolic_number(mode, 1e16, LocalSource("a")), symbolic_number(mode, 1.0, LocalSource("b"))
    left = computed_number(mode, "exact_add", (computed_number(mode, "exact_add", (a, b)), -1e16))
    assert left is None  # a zero now: there are two
    right = computed_number(mode, "exact_add", (computed_number(mode, "exact_add", (a, -1e16 + 2)), b))
    assert hint_or_none(right) == (1e16 + (-1e16 + 2)) + 1.0


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        ("exact_truediv", (1.0, 0.0)),
        ("math_sqrt", (-1.0,)),
        ("math_exp", (1e9,)),
        ("math_log", (math.inf,)),
        ("exact_sub", (2.0, 2.0)),
    ],
)
def test_what_no_symbol_stands_for(function: str, operands: tuple[float, ...]) -> None:
    assert computed_number(new_fake_mode(), function, operands) is None


def test_errors_that_no_arithmetic_raises_are_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise AttributeError("of ours")

    monkeypatch.setitem(EXACT, "math_exp", fails)
    with pytest.raises(AttributeError, match="of ours"):
        computed_number(new_fake_mode(), "math_exp", [2.0])


def test_specialised_at_the_users_line() -> None:
    mode = new_fake_mode()
    x = symbolic_fake(mode, torch.ones(5, 7), X, (0, 1))
    size = x.shape[0]
    with located(lambda: Location("user.py", 8, "forward")):
        assert int(size) == 5
    found = specialised_at(attach_shape_env(mode), size)
    assert found is not None and found.lineno == 8
    assert specialised_at(attach_shape_env(mode), x.shape[1]) is None


def test_a_size_is_checked_with_its_relations() -> None:
    mode = new_fake_mode()
    real = torch.ones(5, 7)
    fake = symbolic_fake(mode, real, X, (0, 1))
    assert fake.shape[0] < fake.shape[1]
    check = check_of(mode, {"x": (real, fake)}, {})
    assert check((torch.ones(6, 9),), NOTHING)
    for other in (
        torch.ones(9, 6),
        torch.ones(1, 6),
        torch.ones(6, 9, 1),
        torch.ones(9, 6).t(),
        torch.ones(6, 9, dtype=torch.int),
    ):
        assert not check((other,), NOTHING)


def test_what_a_shape_env_remembers_goes_with_it() -> None:
    mode = new_fake_mode()
    fake = symbolic_fake(mode, torch.ones(5, 7), X, (0, 1))
    assert (fake.shape[0] * 2) // 2 + fake.shape[1] > 4
    gone = weakref.ref(attach_shape_env(mode))
    del mode, fake
    gc.collect()
    assert gone() is None


def test_a_range_that_is_learnt_is_not_forgotten_for_what_was_remembered() -> None:
    mode = new_fake_mode()
    size: Any = symbolic_fake(mode, torch.ones(8), X, (0,)).shape[0]
    env = attach_shape_env(mode)
    condition = size.node.expr > 6
    assert env._maybe_evaluate_static(condition) is None
    env._update_var_to_range(size.node.expr, ValueRanges(7, 100))
    assert env._maybe_evaluate_static(condition) is sympy.true


def test_calls_that_may_raise_are_guarded_whether_or_not_their_numbers_are_used() -> None:
    mode = new_fake_mode()
    number = symbolic_number(mode, 2.5, X)
    computed_number(mode, "math_exp", [computed_number(mode, "exact_mul", [number, 2.0])])
    check = check_of(mode, {}, {"x": number})
    assert check((3.5,), NOTHING) and not check((1e6,), NOTHING)


@pytest.mark.parametrize(("base", "exponent", "other"), [(2.0, 0.5, -2.0), (3, 2, -1)])
def test_calls_are_guarded_to_give_what_they_gave(base: float, exponent: float, other: float) -> None:
    """A power of a negative float is complex; one of integers with a negative exponent is a float."""
    mode = new_fake_mode()
    number = symbolic_number(mode, base if type(base) is float else int(exponent), X)
    operands = (number, exponent) if type(base) is float else (base, number)
    computed_number(mode, "exact_pow", operands)
    check = check_of(mode, {}, {"x": number})
    assert check((hint_or_none(number),), NOTHING) and check((hint_or_none(number) + 1,), NOTHING)
    assert not check((other,), NOTHING)


@pytest.mark.parametrize("function", ["add", "sub", "mul", "floordiv", "mod"])
def test_what_is_not_known_has_a_type(function: str) -> None:
    mode = new_fake_mode()
    env = attach_shape_env(mode)
    unknown = env.create_unbacked_symint()
    assert type(computed_number(mode, f"exact_{function}", (unknown, -3))) is torch.SymInt
    assert type(computed_number(mode, f"exact_{function}", (unknown, 1.5))) is torch.SymFloat
    assert type(computed_number(mode, f"exact_{function}", (env.create_unbacked_symfloat(), 2))) is torch.SymFloat
    assert computed_number(mode, "exact_pow", (unknown, 2)) is None


def _nothing() -> None:
    """The function whose calls are checked."""


NOTHING: Any = _nothing


def test_what_is_added_to_a_sum_that_has_become_known() -> None:
    mode = new_fake_mode()
    one, other = (symbolic_number(mode, value, LocalSource(name)) for name, value in (("a", 4), ("b", 3)))
    total = one + other
    assert int(total) == 7  # now one of the two is 7 less the other
    assert str((total + other).node.expr).count("7") == 1 and hint_or_none(total + other) == 10
    assert hint_or_none(other + total) == 10 and int(total + total) == 14


def test_torch_divides_by_what_is_zero_at_present_and_a_guard_says_so() -> None:
    """C++ asks for quotients by another name than Python does, where it is an error."""
    env = symbols.new_shape_env()
    mode = new_fake_mode(env)
    fake = symbolic_fake(mode, torch.zeros(3, 4), X, {0, 1})
    less = torch.sym_float(fake.shape[0]) - 3.0
    with pytest.raises(ZeroDivisionError):
        2.0 / less
    assert not env.guards
    two = less.node.wrap_float(2.0)
    assert two.truediv(less.node).constant == math.inf
    assert {symbol for guard in env.guards for symbol in guard.expr.free_symbols} == {fake.shape[0].node.expr}


def test_a_data_dependent_condition_keeps_all_its_symbols() -> None:
    env = symbols.new_shape_env()
    mode = new_fake_mode(env)
    fake = symbolic_fake(mode, torch.zeros(3, 4), X, {0, 1})
    with mode:
        count = torch.ones(4).nonzero().shape[0]
    with pytest.raises(RuntimeError) as raised:
        bool(count * fake.shape[1] > 7)
    asked = symbols.condition_asked_by(raised.value)
    assert asked.free_symbols == {count.node.expr, fake.shape[1].node.expr}


def test_where_a_tensor_begins_shares_no_symbol_with_a_size() -> None:
    """A graph that reads the size off an offset would have 0 for its own tensors."""
    mode = new_fake_mode()
    leaf = symbolic_fake(mode, torch.ones(7)[3:].detach().requires_grad_(), LocalSource("x"), (0,))
    other = symbolic_fake(mode, torch.ones(2, 3), LocalSource("y"), (0, 1))
    assert leaf.storage_offset() == 3
    assert [str(source.name) for source in mode.shape_env.var_to_sources[other.shape[1].node.expr]] == [
        "L['y'].size()[1]"
    ]
