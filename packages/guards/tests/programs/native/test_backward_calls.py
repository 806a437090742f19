"""The usual pass of an autograd node in C: what it takes and returns, what it passes on, what it holds."""

import gc
import sys
import threading
import weakref

import pytest
import torch

from framesmith_guards.programs.native.backward import UsualPass, guarded_pass
from framesmith_guards.programs.native.probing import extension, why_no_tensors

pytestmark = pytest.mark.skipif(extension()[0] is None or why_no_tensors() is not None, reason=str(why_no_tensors()))

CPU = torch.device("cpu")
VECTOR = (CPU, (1,))


class Node:
    """Stands for an autograd node."""

    def __init__(self, *saved):
        self.saved = saved
        self.held = "something"

    @property
    def saved_tensors(self):
        if self.saved is None:
            raise RuntimeError("freed")
        return self.saved

    def maybe_clear_saved_tensors(self):
        self.saved = None


def method(program, tangents, results, *, saved=None, numbers=None, dropped=(), unusual=(), retained=lambda: False):
    """Return a class of nodes with a guarded pass, which passes unusual calls on to a tuple."""
    usual = UsualPass(program, saved, numbers, tangents, results, dropped)

    def otherwise(*args):
        return "otherwise", *args[1:]

    def arrange(tensor, layout):
        if isinstance(layout, list):
            return "arranged", tensor, layout
        return torch.empty_strided(tensor.shape, layout).copy_(tensor)

    return type("Class", (Node,), {"apply": guarded_pass(usual, otherwise, tuple(unusual), retained, arrange)})


def taken(args):
    """Return what a program was given, as it empties the list."""
    found = [*args]
    args.clear()
    return found


def test_a_program_gets_saved_tensors_numbers_and_tangents_in_this_order():
    cls = method(taken, [VECTOR], [2, None, 0, 1], saved=1, numbers="numbers")
    node = cls("saved", "only for its version")
    node.numbers = (7,)
    tangent = torch.ones(2)
    assert node.apply(tangent) == (tangent, None, "saved", 7)


def test_saved_tensors_are_released_before_the_program_runs():
    node = method(lambda args: (sys.getrefcount(args[0]),), [VECTOR], [0], saved=1)(object())
    # The list, and the argument.
    assert node.apply(torch.ones(2)) == (2,)
    with pytest.raises(RuntimeError, match="freed"):
        node.apply(torch.ones(2))


@pytest.mark.parametrize("retained", [False, True])
def test_attributes_are_dropped_unless_the_graph_is_retained(retained):
    node = method(taken, [VECTOR], [None], dropped=("held",), retained=lambda: retained)()
    node.apply(torch.ones(2))
    assert node.held == ("something" if retained else None)


@pytest.mark.parametrize(
    "tangents",
    [
        (),
        (torch.ones(2), torch.ones(2), None),
        (torch.ones(2),),
        (torch.ones(2), torch.ones(2)),
        (None, None),
        (torch.nn.Parameter(torch.ones(2)), None),
        (torch.ones(2, 2), None),
        (torch.ones(2).to_sparse(), None),
        (torch.ones(2, device="meta"), None),
        (torch._neg_view(torch.ones(2)), None),
        ("tangent", None),
    ],
)
def test_other_tangents_are_passed_on(tangents):
    node = method(taken, [VECTOR, None], [0])()
    passed = node.apply(*tangents)
    assert passed[0] == "otherwise"
    assert all(one is other for one, other in zip(passed[1:], tangents, strict=True))


def test_calls_in_which_a_question_is_answered_with_yes_are_passed_on():
    node = method(taken, [VECTOR], [0], unusual=[lambda: None, torch.is_grad_enabled])()
    with torch.enable_grad():
        assert node.apply(torch.ones(2))[0] == "otherwise"
    with torch.no_grad():
        assert node.apply(torch.ones(2))[0].tolist() == [1.0, 1.0]


def test_a_tangent_with_other_strides_is_copied():
    node = method(taken, [(CPU, (2, 1))], [0])()
    tangent = torch.arange(4.0).view(2, 2).t()
    [got] = node.apply(tangent)
    assert got.stride() == (2, 1)
    assert torch.equal(got, tangent)


def test_strides_along_dimensions_of_size_one_do_not_matter():
    tangent = torch.ones(3).as_strided((1, 3), (77, 1))
    assert method(taken, [(CPU, (3, 1))], [0])().apply(tangent)[0] is tangent


def test_a_tangent_of_symbolic_strides_is_arranged():
    tangent, order = torch.ones(2, 3), [1, 0]
    node = method(taken, [(CPU, order)], [0])()
    assert node.apply(tangent) == (("arranged", tangent, order),)
    assert node.apply(torch.ones(2))[0] == "otherwise"


def fails(*_):
    raise ValueError("as planned")


@pytest.mark.parametrize(
    "given",
    [
        {"program": fails},
        {"unusual": [fails]},
        {"retained": fails, "dropped": ("held",)},
        {"dropped": ("saved_tensors",)},
        {"results": [5]},
        {"program": lambda args: 3},
        {"saved": 4},
        {"numbers": "absent"},
        {"numbers": "held"},
    ],
)
def test_errors_pass_and_nothing_leaks(given):
    given = {"program": taken, "tangents": [VECTOR], "results": [0], "saved": 1, **given}
    cls = method(**given)
    tangent, saved = torch.ones(2), object()
    before = sys.getrefcount(tangent), sys.getrefcount(saved)
    for _ in range(10):
        with pytest.raises((ValueError, AttributeError, RuntimeError, TypeError)):
            cls(saved).apply(tangent)
    assert (sys.getrefcount(tangent), sys.getrefcount(saved)) == before


@pytest.mark.parametrize("tangents", [[(CPU, ("x",))], [(CPU, 3)], [VECTOR, (CPU, (2**70,))]])
def test_descriptions_that_are_wrong_are_refused(tangents):
    with pytest.raises((TypeError, OverflowError)):
        method(taken, tangents, [0])


def test_a_class_and_its_pass_are_collected_together():
    class Program:
        def __call__(self, args):
            return args

    program = Program()
    cls = method(program, [VECTOR], [0])
    program.node_class = cls
    gone = weakref.ref(cls)
    del cls, program
    gc.collect()
    assert gone() is None


def test_a_pass_may_run_within_itself_while_its_class_lets_go_of_it():
    def program(args):
        [tangent] = taken(args)
        if tangent.numel() == 1:
            return (tangent,)
        inner = node.apply(tangent[1:])
        cls.apply = None
        gc.collect()
        return inner

    cls = method(program, [VECTOR], [0])
    node = cls()
    assert node.apply(torch.arange(2.0))[0].tolist() == [1.0]
    assert cls.apply is None


def test_threads_share_a_pass_each_with_tensors_of_its_own():
    def program(args):
        saved, tangent = taken(args)
        return (saved * tangent,)

    cls = method(program, [VECTOR], [0], saved=1, dropped=("held",))
    wrong = []

    def work(number):
        for step in range(300):
            node = cls(torch.full((4,), float(number)))
            if step % 7 == 0:
                gc.collect(0)
            [got] = node.apply(torch.full((4,), float(step)) if step % 2 else torch.tensor(float(step)).expand(4))
            if got.tolist() != [float(number * step)] * 4:
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
