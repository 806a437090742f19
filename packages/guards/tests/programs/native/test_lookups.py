"""Types that look attributes up by interned names: nothing else is different."""

import gc
import weakref

import pytest
import torch

from framesmith_guards.programs.native.lookups import interned_lookups
from framesmith_guards.programs.native.probing import extension

NAMES = ("asked_name", "of_class")
needs_c = pytest.mark.skipif(extension()[0] is None, reason="no extension")


class Base:
    asked_name = 1


class Meta(type):
    of_meta = 5


def fresh(name):
    """A str that is not interned."""
    return "".join([*name])


@pytest.mark.parametrize("name", [*NAMES, "of_instance", "method", "__class__"])
def test_attributes_are_those_of_the_plain_type(name):
    for base in (Base, interned_lookups(Base, NAMES)):

        class Derived(base):
            of_class = 2

            def method(self):
                return self.asked_name

            def __getattr__(self, name):
                return f"no {name}"

        instance = Derived()
        instance.of_instance = 3
        found = getattr(instance, fresh(name))
        assert (found() if name == "method" else found) in (1, 2, 3, Derived)
        assert getattr(instance, fresh("absent")) == "no absent"
        Derived.asked_name = 7
        assert getattr(instance, fresh("asked_name")) == getattr(Derived, fresh("asked_name")) == 7


def test_a_metaclass_gives_its_classes_attributes():
    made = interned_lookups(Meta, NAMES)("Made", (Base,), {"of_class": staticmethod(len)})
    assert [getattr(made, fresh(name)) for name in (*NAMES, "of_meta")] == [1, len, 5]
    made.asked_name = 4
    assert getattr(made, fresh("asked_name")) == 4
    with pytest.raises(AttributeError, match="absent"):
        getattr(made, fresh("absent"))


def test_classes_and_instances_are_collected():
    made = interned_lookups(Meta, NAMES)("Made", (interned_lookups(Base, NAMES),), {})
    instance = made()
    instance.itself = instance
    gone = [weakref.ref(made), weakref.ref(instance)]
    del made, instance
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_autograd_functions_may_have_it():
    meta = interned_lookups(type(torch.autograd.Function), ("forward", "_backward_cls"))
    members = {"forward": staticmethod(lambda ctx, x: x * 2), "backward": staticmethod(lambda ctx, grad: grad * 2)}
    function = meta("Doubled", (torch.autograd.Function,), members)
    x = torch.ones(2, requires_grad=True)
    function.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


@needs_c
def test_types_with_lookups_of_their_own_are_refused():
    class Own:
        def __getattribute__(self, name):
            return 1

    with pytest.raises(TypeError, match="its own way"):
        interned_lookups(Own, NAMES)
    with pytest.raises(TypeError):
        interned_lookups(Base, (1,))
