"""Fake modes are made without torch._dynamo, and torch.compile works as ever afterwards."""

import textwrap
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from framesmith_aten.fakes import fake_mode_of, new_fake_mode
from framesmith_aten.fakes.symbols import symbolic_fake
from framesmith_guards import GuardError, LocalSource
from tools.warm_process import run_program


def run(script):
    done = run_program(textwrap.dedent(script))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_modes_are_entered_by_threads_that_end():
    """The first in the process, too: see Note [The thread that sets the device guard]."""
    script = """
        import threading, torch
        from framesmith_aten.fakes import new_fake_mode
        def trace():
            with new_fake_mode():
                torch.empty(2)
        for _ in range(20):
            threads = [threading.Thread(target=trace) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        print("done")
    """
    assert run(script) == ["done"]


USE = """
    import sys, threading, torch
    from framesmith_aten.fakes import new_fake_mode
    mode = new_fake_mode()
    base = torch.randn(4, 6)
    weight = mode.from_tensor(torch.nn.Parameter(torch.randn(4, 4)))
    view, whole = mode.from_tensor(base[:, 1:3]), mode.from_tensor(base)
    assert view.stride() == (6, 1) and view.storage_offset() == 1 and view._base is whole
    mode.from_tensor(torch.tensor(3.0))
    with mode:
        y = torch.nn.functional.linear(weight, weight).softmax(-1)
        y.sum().backward()
        assert weight.grad.shape == (4, 4)
        q = torch.nn.functional.conv2d(torch.empty(1, 3, 8, 8), torch.empty(4, 3, 3, 3))
        torch.nn.functional.batch_norm(q, torch.zeros(4), torch.ones(4), training=True)
        torch.nn.functional.cross_entropy(torch.empty(3, 4), torch.zeros(3, dtype=torch.long))
        torch.nn.functional.dropout(q); torch.sort(q); torch.stack([q, q])[0, :, 1:3].clone()
"""


def test_torch_dynamo_is_not_imported():
    assert run(USE + "\n    print('torch._dynamo' in sys.modules)") == ["False"]


def test_layers_and_views_do_not_import_what_torch_has_of_distributed_tensors():
    script = """
    import sys, torch
    from framesmith_aten.fakes import new_fake_mode
    with new_fake_mode():
        x = torch.empty(4, 6)
        y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ x.t(), (4,))).softmax(-1)
        y.view(-1, 2)[0].add(1).sum()
    print("torch.distributed.tensor" in sys.modules)
    """
    assert run(script) == ["False"]


def test_torch_compile_works_afterwards_also_in_a_thread():
    script = """
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter
    counter = CompileCounter()
    def f(x):
        return torch.nn.functional.softmax(x, -1).sin() + 1
    x = torch.randn(3)
    results = []
    def work():
        results.append(torch.allclose(torch.compile(f, backend=counter)(x), f(x)))
    work()
    thread = threading.Thread(target=work); thread.start(); thread.join()
    assert counter.frame_count >= 1 and counter.op_count >= 3
    with mode:
        torch.nn.functional.gelu(torch.empty(3)).abs_()
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    print(*results, torch._dynamo.config.fake_tensor_cache_enabled, len(list(exported.graph.nodes)) > 3)
    """
    assert run(USE + script) == ["True", "True", "True", "True"]


def test_nothing_is_left_out_once_torch_dynamo_is_imported():
    script = """
    import torch._dynamo
    from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
    from torch._subclasses.meta_utils import MetaConverter
    from framesmith_aten.fakes import new_fake_mode
    made = new_fake_mode()
    converter = made.fake_tensor_converter
    print(
        type(made).from_tensor is FakeTensorMode.from_tensor
        and isinstance(converter, FakeTensorConverter)
        and type(converter.meta_converter).__call__ is MetaConverter.__call__
    )
    """
    assert run(script) == ["True"]


@pytest.mark.parametrize("before", ["", "import torch._dynamo"])
def test_a_rule_that_is_wrong_is_not_asked(before):
    script = f"""
    {before}
    import torch
    from torch._subclasses.fake_tensor import DynamicOutputShapeException
    from framesmith_aten.fakes import new_fake_mode
    from framesmith_aten.fakes.symbols import attach_shape_env
    mode = new_fake_mode()
    attach_shape_env(mode)
    padded, lengths = (mode.from_tensor(one) for one in (torch.ones(3, 2, 4), torch.tensor([3, 2])))
    try:
        with mode:
            torch.nn.utils.rnn.pack_padded_sequence(padded, lengths)
    except DynamicOutputShapeException:
        print("refused")
    """
    assert run(script) == ["refused"]


def test_light_and_plain_modes_agree():
    script = """
    import sys, torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from framesmith_aten.fakes import new_fake_mode
    def facts(mode):
        x = mode.from_tensor(torch.randn(2, 3, requires_grad=True).t())
        with mode:
            y = torch.nn.functional.softmax(x @ x.t(), -1)
        return x.shape, x.stride(), x.requires_grad, x.is_leaf, y.shape, y.stride(), y.dtype, x.device
    light = new_fake_mode()
    names = {k for k in vars(light)}
    left = facts(light)
    plain = FakeTensorMode()
    print(left == facts(plain), names == {k for k in vars(plain)}, isinstance(light, FakeTensorMode))
    """
    assert run(script) == ["True", "True", "True"]


def test_tensors_that_are_no_leaves_are_not_warned_of() -> None:
    """If warnings are errors, such a tensor had no fake."""
    leaf = torch.randn(3, requires_grad=True)
    made, kept = leaf * 2, leaf * 3
    kept.retain_grad()
    (made.sum() + kept.sum()).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for real in (made, kept, leaf, torch.nn.Parameter(leaf.detach())[1:]):
            for static in (True, False):
                fake = new_fake_mode().from_tensor(real, static_shapes=static)
                assert (fake.requires_grad, fake.is_leaf) == (real.requires_grad, real.is_leaf)
    assert new_fake_mode().from_tensor(leaf).grad is not None


def test_directly_made_fakes_are_those_of_torch():
    script = """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from framesmith_aten.fakes import new_fake_mode
    from framesmith_aten.fakes import modes
    from framesmith_guards.values.tensors import dispatch_keys

    def inputs():
        base, leaf = torch.randn(4, 6), torch.ones(3, requires_grad=True)
        used = torch.ones(3, requires_grad=True)
        used.sum().backward()
        yield torch.randn(2, 3)
        yield torch.nn.Parameter(torch.randn(2, 3))
        yield torch.nn.Parameter(torch.randn(2, 3), requires_grad=False)
        yield from (base, base[1:], base.t(), base.detach(), base.expand(2, 4, 6))
        yield from (leaf, leaf * 2, leaf[1:], used)
        yield from (torch.empty(0, 3), torch.tensor(1), torch.tensor(2.0), torch.ones(2, dtype=torch.bool))
        yield torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        yield from (torch.ones(2, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(2)))
        yield from (torch.ones(2, 3).to_sparse(), torch.ones(2, device="meta"), torch.nn.Buffer(torch.ones(2)))
        with torch.inference_mode():
            yield torch.ones(2)

    def facts(fake):
        strided = fake.layout is torch.strided
        return (
            type(fake).__name__, isinstance(fake, torch.nn.Parameter), fake.dtype, fake.device, fake.shape, fake.layout,
            fake.requires_grad, fake.is_leaf, dispatch_keys(fake), fake.grad is None, fake._base is None,
            fake.is_conj(), fake.is_neg(), fake.is_inference(), strided and fake.stride(),
            strided and (fake.storage_offset(), fake.untyped_storage().nbytes()),
        )

    def storages(fakes):
        ids = [f.untyped_storage()._cdata for f in fakes if f.layout is torch.strided]
        return [ids.index(i) for i in ids]

    reals = list(inputs())
    made = []
    direct = modes.plain_fake
    modes.plain_fake = lambda mode, t: made.append(direct(mode, t)) or made[-1]
    light = new_fake_mode()
    fakes = [light.from_tensor(t) for t in reals]
    again = [light.from_tensor(t) for t in reals]
    plain = FakeTensorMode()
    expected = [plain.from_tensor(t) for t in reals]
    for fake, wanted in zip(fakes, expected):
        assert facts(fake) == facts(wanted), (facts(fake), facts(wanted))
    print(storages(fakes) == storages(expected), all(a is b for a, b in zip(fakes, again)))
    print(sum(fake is not None for fake in made) >= 8, sum(fake is None for fake in made) >= 8)
    """
    assert run(script) == ["True"] * 4


def test_the_mode_of_values():
    one, other = new_fake_mode(), new_fake_mode()
    a, b = one.from_tensor(torch.ones(2)), other.from_tensor(torch.ones(2))
    assert fake_mode_of([1, {"x": (a,)}]) is one
    assert fake_mode_of([torch.ones(1), "x"]) is None
    with pytest.raises(GuardError, match="two different fake modes"):
        fake_mode_of([a, b])


@pytest.mark.parametrize("name", ["mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_derivatives_of_losses_of_no_elements(name, reduction):
    mode = new_fake_mode()
    nothing = torch.ones(2, 0, 3)
    gradient = torch.ones(()) if reduction else nothing
    more = () if name == "mse_loss_backward" else (1.0,)
    operator = getattr(torch.ops.aten, name).default
    expected = operator(gradient, nothing, nothing, reduction, *more)
    found = operator(*(mode.from_tensor(value) for value in (gradient, nothing, nothing)), reduction, *more)
    assert found.shape == expected.shape and found.stride() == expected.stride() and found.dtype is expected.dtype


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["_batch_norm_with_update_functional", "_native_batch_norm_legit_functional"])
def test_new_values_of_arguments_have_their_types(name: str, dynamic: bool) -> None:
    op = getattr(torch.ops.aten, name).default
    training = (True,) if "legit" in name else ()
    real = [torch.ones(2, 3, 4), *(torch.ones(3) for _ in range(4))]
    real = [each.bfloat16() for each in real]
    mode = new_fake_mode()
    fakes = [mode.from_tensor(each) for each in real]
    if dynamic:
        fakes[0] = symbolic_fake(mode, real[0], LocalSource("x"), (0, 1, 2))
    with mode:
        found = op(*fakes, *training, 0.1, 1e-5)
    assert [each.dtype for each in found] == [each.dtype for each in op(*real, *training, 0.1, 1e-5)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("chance", "training"), [(0.5, False), (0.5, None), (0.0, True)])
def test_dropout_that_drops_nothing_copies(chance: float, training: bool | None, dynamic: bool) -> None:
    mode, real = new_fake_mode(), torch.ones(4, 3).t()
    x = symbolic_fake(mode, real, LocalSource("x"), (0, 1)) if dynamic else mode.from_tensor(real)
    with mode:
        found = torch.ops.aten.native_dropout.default(x, chance, training)
    for one, other in zip(found, torch.ops.aten.native_dropout.default(real, chance, training), strict=True):
        assert one.untyped_storage()._cdata != x.untyped_storage()._cdata
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def test_views_of_what_is_empty_lie_in_its_memory_in_every_mode():
    """Torch's memory of results is all modes': the first call of a kind is computed, later ones are remembered."""
    FakeTensorMode.cache_clear()
    for shape in ([0], [-1], [3, 0], [0], [-1], [5, 0]):
        mode = new_fake_mode()
        x = mode.from_tensor(torch.ones(0, 3), static_shapes=True)
        with mode:
            view = torch.ops.aten.view.default(x, shape)
        assert view._base is x
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata


@pytest.mark.parametrize("data", [torch.ones(2, 2), torch.ones(3, dtype=torch.float64)], ids=["size", "dtype"])
def test_a_gradient_from_before_the_data_was_replaced(data):
    leaf = torch.ones(3, requires_grad=True)
    leaf.sum().backward()
    leaf.data = data
    fake = new_fake_mode().from_tensor(leaf)
    assert (fake.shape, fake.dtype, fake.requires_grad, fake.grad) == (data.shape, data.dtype, True, None)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("make", [
    lambda: torch.tensor(3), lambda: torch.tensor(2.5, dtype=torch.float64), lambda: torch.tensor(True),
    lambda: torch.arange(4)[2], lambda: torch.tensor(2.5, dtype=torch.float64, requires_grad=True),
], ids=["int", "float", "bool", "part", "leaf"])  # fmt: skip
def test_fakes_of_numbers_do_not_know_them(make, loaded) -> None:
    """The next call may have another number; releases of torch from 2.15 on keep that of the first."""
    from framesmith_aten.fakes.modes import _FakeTensorMode, _light_mode_class

    mode, number = (_FakeTensorMode if loaded else _light_mode_class())(), make()
    with mode, pytest.raises(DataDependentOutputException):
        mode.from_tensor(number).item()
