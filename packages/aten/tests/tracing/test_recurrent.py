"""oneDNN's LSTM layer in graphs with gradients: one call forward, one backward, with eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from framesmith_aten.checks import kernel_probes
from framesmith_aten.operators import is_effect, is_random
from framesmith_aten.tracing import recurrent
from framesmith_aten.tracing.decompositions import decomposition_of, lowers_nothing

aten = torch.ops.aten

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")


def layer_arguments(batch: int = 3, steps: int = 4) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    sizes = (steps, batch, 5), (24, 5), (24, 6), (24,), (24,), (batch, 6), (batch, 6)
    return tuple(torch.randn(size) for size in sizes)


FLAGS = (False, [], 2, 6, 1, True, False, False, True)


def test_it_gives_what_the_layer_gives_and_a_workspace_though_nothing_is_recorded() -> None:
    tensors = layer_arguments()
    with torch.enable_grad():
        wanted = aten.mkldnn_rnn_layer.default(*tensors, *FLAGS)
    with torch.no_grad():
        found = recurrent.layer()(*tensors, *FLAGS)
        plain = aten.mkldnn_rnn_layer.default(*tensors, *FLAGS)
        assert not torch.is_grad_enabled()
    for one, two in zip(found[:3], wanted[:3], strict=True):
        assert torch.equal(one, two) and one.stride() == two.stride()
    assert found[3].shape == (1,)
    assert found[3].untyped_storage().nbytes() == wanted[3].untyped_storage().nbytes() > 1
    assert plain[3] is None or plain[3].numel() == 0  # the reason that there is an operator


def test_its_derivative_reads_the_workspace() -> None:
    tensors = layer_arguments()
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = aten.mkldnn_rnn_layer.default(*leaves, *FLAGS)[0]
    wanted = torch.autograd.grad(output, leaves, torch.ones_like(output))
    with torch.no_grad():
        output, hidden, cell, workspace = recurrent.layer()(*tensors, *FLAGS)
        head, tail = (False, 2, 6, 1), (True, True, False, [], False, workspace)
        grads = torch.ones_like(output), None, None
        found = recurrent.derivative()(*tensors, output, hidden, cell, *grads, *head, *tail)
        with pytest.raises(RuntimeError, match="workspace"):
            copy = workspace.clone()
            recurrent.derivative()(*tensors, output, hidden, cell, *grads, *head, *tail[:-1], copy)
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one, two)


def test_the_rule_is_for_where_gradients_are_recorded() -> None:
    rule = decomposition_of(recurrent.LAYER, lowers_nothing)
    assert rule is not None
    with torch.no_grad():
        assert rule(*layer_arguments(), *FLAGS) is NotImplemented
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in layer_arguments()]
        output, hidden, cell, workspace = rule(*fakes, *FLAGS)
    assert output.shape == (4, 3, 6) and hidden.shape == cell.shape == (3, 6)
    assert workspace.dtype is torch.uint8 and workspace.shape == (1,)


def test_they_are_operators_without_effects() -> None:
    for op in (recurrent.layer(), recurrent.derivative()):
        assert not is_effect(op) and not is_random(op)


def test_what_reads_a_workspace_is_not_tried_with_a_made_up_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel goes by what oneDNN wrote there: a workspace of another size ends the process."""
    op = aten.mkldnn_rnn_layer_backward.default
    monkeypatch.setattr(kernel_probes, "_answer", pytest.fail)
    monkeypatch.setattr(kernel_probes, "_layouts_of_real", pytest.fail)
    tensors = layer_arguments(1)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        output, hidden, cell, workspace = recurrent.layer()(*fakes, *FLAGS)
        state = output, hidden, cell, output.transpose(0, 1).contiguous().transpose(0, 1), None, None
        args = (*fakes, *state, False, 2, 6, 1, True, True, False, [], False, workspace)
        assert not kernel_probes.verdict(op, args, {}).certain
        made = op(*args)
        assert kernel_probes.as_laid_out(op, args, {}, made) is made
