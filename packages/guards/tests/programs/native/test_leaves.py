"""A leaf checked whole, in C: its parts, faster and by torch's own getters, and in trees proved unchanged."""

from types import SimpleNamespace

import pytest
import torch
from native_programs import X, agreed, f, native

from framesmith_guards import Guard, InstanceDictSource, ItemSource
from framesmith_guards.kinds.leaves import HAS_GRAD_DTYPE, HOOKS
from framesmith_guards.programs.native import probing

pytestmark = pytest.mark.skipif(
    probing.extension()[0] is None or probing.why_no_tensors() is not None, reason=str(probing.why_no_tensors())
)

WEIGHT = ItemSource(InstanceDictSource(X), "weight")


def guards_of(holder, source=WEIGHT):
    parts = [Guard(source, "TENSOR_MATCH", holder.weight), Guard(source, "PLAIN_LEAF", holder.weight.dtype)]
    return [Guard(X, "TYPE_MATCH", SimpleNamespace), *parts]


def holder(dtype=torch.float32):
    return SimpleNamespace(weight=torch.ones(2, dtype=dtype, requires_grad=True))


def hooked(tensor):
    return tensor.register_hook(lambda grad: None)


def watched(tensor):
    return tensor.register_post_accumulate_grad_hook(lambda leaf: None)


def of_any_dtype(tensor):
    tensor.grad_dtype = None


PARTS = {
    "a hook sees its gradient": hooked,
    "a hook runs after its gradient is accumulated": watched,
    "its gradients have the dtype None": of_any_dtype,
    "it is no leaf: it has a history": lambda tensor: tensor.mul_(torch.ones((), requires_grad=True)),
}
if not HAS_GRAD_DTYPE:
    del PARTS["its gradients have the dtype None"]


@pytest.fixture(params=["words", "getters"])
def reads(request):
    """Whether attributes are read faster than by their getters."""
    known, _ = probing.extension()
    base = next(cls for cls in torch.Tensor.__mro__ if "is_leaf" in vars(cls))
    descriptors = tuple(map(vars(base).get, ("is_leaf", *HOOKS, "grad_dtype")))
    with probing.undisturbed():
        faster = known.leaves_setup(descriptors, () if request.param == "getters" else probing._leaf_probes())
        assert any(faster) is (request.param == "words")
        yield
        known.leaves_setup(descriptors, probing._leaf_probes())


@pytest.mark.parametrize("why", PARTS)
def test_a_change_of_any_part_is_seen_in_a_proved_tree_and_explained(why, reads):
    one = holder()
    if why.startswith("it is no leaf"):
        one.weight = torch.ones(2)  # in place, to which autograd then gives a history
    program = native(guards_of(one))
    assert all(agreed(program, (one,)) for _ in range(3))
    assert program.blocks[0][2]
    PARTS[why](one.weight)
    assert not agreed(program, (one,))
    if not why.startswith("it is no leaf"):  # the tensor now requires gradients: a miss names that first
        assert why in program.explain((one,), f)


def test_a_hook_that_was_removed_does_not_matter(reads):
    one = holder()
    program = native(guards_of(one))
    for register in (hooked, watched):
        handle = register(one.weight)
        assert not agreed(program, (one,))
        handle.remove()
        assert agreed(program, (one,)) and agreed(program, (one,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_gradients_have_the_dtype_of_the_leaf(dtype, reads):
    one = holder(dtype)
    program = native(guards_of(one))
    assert agreed(program, (one,))
    assert not agreed(program, (holder(torch.float16),))


def test_a_tensor_with_a_history_is_no_leaf(reads):
    source = ItemSource(X, 0)
    leaf = torch.ones(2, requires_grad=True)
    program = native([Guard(source, "TENSOR_MATCH", leaf), Guard(source, "PLAIN_LEAF", torch.float32)])
    assert agreed(program, ([leaf],))
    assert not agreed(program, ([leaf * 2],))
    assert "history" in program.explain(([leaf * 2],), f)


def test_descriptors_and_probes_that_are_wrong_are_refused(reads):
    known, _ = probing.extension()
    for given in [((), ()), ((1, 2, 3, None), ()), ((int.real,) * 4, ())]:
        with pytest.raises(TypeError):
            known.leaves_setup(*given)
