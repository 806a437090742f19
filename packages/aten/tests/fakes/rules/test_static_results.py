"""Results that a mode remembers are those that torch gives: layouts, memory, and what calls have in common or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from framesmith_aten.fakes import new_fake_mode
from framesmith_aten.fakes.rules import static_results

Tensor = torch.Tensor
aten = torch.ops.aten


def described(value: Any) -> Any:
    """All that is compared of a result."""
    if isinstance(value, (list, tuple)):
        return type(value), [described(one) for one in value]
    if not isinstance(value, Tensor):
        return value
    layout = tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device
    bits = value.is_conj(), value.is_neg(), value.is_inference(), value.requires_grad, value._is_view()
    return *layout, *bits, value.untyped_storage().nbytes()


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x.sin(),
    "number": lambda x: x + 1,
    "another type of number": lambda x: (x.int() + 1, x.int() + 1.0, x.int() * True, x.int() / 2),
    "half": lambda x: (x.half() + 1.0, x.half() + x, x.double() * x[0, 0]),
    "views": lambda x: (x.t(), x[1:], x[:, 1], x.view(-1), x.unsqueeze(0).expand(3, -1, -1), x.view(torch.int32)),
    "view of a view": lambda x: x[1:].t()[1:].diagonal(),
    "parts": lambda x: (x.split(2), x.chunk(3, 1), x.unbind(0), torch.split_with_sizes(x, [1, 3])),
    "several results": lambda x: (x.max(0), torch.var_mean(x, 0), torch.native_layer_norm(x, [6], None, None, 1e-5)),
    "transposed": lambda x: (x.t() + 1, x.t().contiguous(), x.t().clone(), torch.empty_like(x.t())),
    "complex": lambda x: (x.cfloat().conj(), x.cfloat().conj() + 1, x.cfloat().conj().imag, x.cfloat().real),
    "matmuls": lambda x: (x @ x.t(), torch.baddbmm(x[None], x[None], x[None, :, :6].new_ones(1, 6, 6))),
    "made": lambda x: (torch.zeros(3), torch.ones(2, 2, dtype=torch.int8), torch.arange(4.0), x.new_full((2,), 3)),
    "joined": lambda x: (torch.cat([x, x], 1), torch.stack([x, x.t().t()]), torch.where(x > 0, x, 0.0)),
    "copies": lambda x: (x.to(torch.float64), x.to(torch.float32, copy=True), x.detach(), x.reshape(6, 4)),
    "gathered": lambda x: (x[torch.tensor([1, 2])], x.sort(0), x.topk(2), torch.embedding(x, torch.arange(3))),
    "as strided": lambda x: (x.as_strided((2, 2), (1, 2), 3), torch.as_strided(x[1:], (2,), (1,))),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_torchs(name: str) -> None:
    call, mode, other = CALLS[name], new_fake_mode(), FakeTensorMode()
    with mode:
        x = torch.empty(4, 6)
        results = [call(x) for _ in range(3)]
    with other:
        wanted = call(torch.empty(4, 6))
    assert [described(result) for result in results] == [described(wanted)] * 3


def test_views_lie_in_the_memory_they_are_views_of_and_other_results_do_not() -> None:
    mode = new_fake_mode()
    with mode:
        for x in (torch.empty(4, 6), torch.empty(4, 6)):
            own = [x.t(), x[1:], aten.view.default(x, [24]), *x.split(2)]
            assert {one.untyped_storage()._cdata for one in own} == {x.untyped_storage()._cdata}
            fresh = [x.sin(), x.clone(), aten._unsafe_view.default(x.clone(), [24]), x + 0]
            assert len({one.untyped_storage()._cdata for one in (x, *fresh)}) == 5


def test_a_change_of_layout_is_another_call() -> None:
    with new_fake_mode():
        x = torch.empty(4, 6)
        assert x.sin().shape == (4, 6) and x.sin().shape == (4, 6)
        x.resize_(2, 3)
        assert x.sin().shape == (2, 3)
        x.t_()
        assert x.sin().stride() == (1, 3) and x.t().stride() == (3, 1)


def test_settings_of_torch_are_part_of_a_call() -> None:
    with new_fake_mode():
        x = torch.empty(3, dtype=torch.int64)
        assert x.sin().dtype is torch.float32 and x.sin().dtype is torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert x.sin().dtype is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.inference_mode():
            assert x.sin().is_inference()
        assert not x.sin().is_inference()


def test_autograd_sees_each_result_by_itself() -> None:
    with new_fake_mode():
        x = torch.empty(4, 6, requires_grad=True)
        first, second = x.sin(), x.sin()
        assert first.requires_grad and first.grad_fn is not second.grad_fn
        assert x.t()._base is x and x.t()._base is x
        with torch.no_grad():
            assert not x.sin().requires_grad
        (first * second).sum().backward()
        assert x.grad is not None and x.grad.shape == (4, 6)


def test_writes_are_carried_out_each_time() -> None:
    with new_fake_mode():
        x, y = torch.empty(3), torch.empty(3)
        for count in (1, 2):
            assert x.add_(1) is x and y.mul_(2) is y
            assert x._version == y._version == count


def test_errors_are_raised_each_time() -> None:
    with new_fake_mode():
        for _ in range(2):
            with pytest.raises(RuntimeError):
                torch.empty(2, 3) @ torch.empty(2, 3)


def test_data_dependent_results_are_not_remembered() -> None:
    with new_fake_mode():
        x = torch.empty(3, dtype=torch.bool)
        for _ in range(2):
            with pytest.raises(Exception, match="nonzero"):
                x.nonzero()
        one = torch.tensor(3)  # a constant, which its fake holds
        assert [(one + 1).item(), (torch.tensor(4) + 1).item()] == [4, 5]


def test_tensors_of_other_modes_are_left_to_torch() -> None:
    mode, other = new_fake_mode(), new_fake_mode()
    with other:
        y = torch.empty(3)
    with mode:
        assert torch.empty(3).sin().fake_mode is mode
        with pytest.raises(Exception, match=r"[Mm]ode"):
            torch.empty(3) + y


def test_static_parts_of_symbolic_tensors_are_left_to_torch() -> None:
    dims: list[Any] = [DimDynamic.DYNAMIC, DimDynamic.STATIC]
    mode = new_fake_mode(ShapeEnv())
    x = mode.from_tensor(torch.empty(6, 4), symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))
    with mode:
        for _ in range(2):
            row = x[1]
            assert (row + row).shape == (4,) and row.view(2, 2).t().storage_offset() == 4
            assert x[x.shape[0] // 2].sin().stride() == (1,)
            assert torch.empty(100).as_strided((2, 2), (2, 1), x.shape[0]).t().sin().stride() == (1, 2)


def test_calls_for_the_current_device_have_no_key() -> None:
    mode = new_fake_mode()
    keyed = {name: static_results._add([], mode, torch.device(name)) for name in ("cpu", "meta", "cuda:1", "cuda")}
    assert keyed == {"cpu": True, "meta": True, "cuda:1": True, "cuda": False}


def test_equal_calls_reach_torch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = static_results._made
    monkeypatch.setattr(static_results, "_made", lambda *args: made.append(args) or real(*args))
    with new_fake_mode():
        x = torch.empty(4, 6)
        assert (x.sin() + 1).shape == x.shape
        count = len(made)
        assert all((x.sin() + 1).shape == x.shape for _ in range(5))
        assert count and len(made) == count
