"""Metaclasses and abstract classes changed between calls."""

import abc

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, World, deleting, setting

family = Family()


class Meta(type):
    scale = 2.0

    def twice(cls):
        return 2.0

    @property
    def prop(cls):
        return 2.0


class Made(metaclass=Meta):
    pass


class Plain:
    pass


def _on(thing):
    return lambda: (torch.arange(1.0, 4.0), thing)


@family.holder("two", "five", "shadowed")
def attribute_of_a_metaclass() -> World:
    def state(meta, own=None):
        def put():
            Meta.scale = meta
            (setting(Made, scale=own) if own else deleting(Made, "scale"))()

        return put

    def f(x):
        return x * Made.scale

    return World(f, [state(2.0), state(5.0), state(5.0, 7.0)])


@family.holder("two", "five")
def property_of_a_metaclass_with_a_cell() -> World:
    value = 2.0

    class Kind(type):
        @property
        def prop(cls):
            return value

        def method(cls):
            return value + 1

    class C(metaclass=Kind):
        pass

    def put(new):
        nonlocal value
        value = new

    def f(x):
        return x * C.prop + C.method()

    return World(f, [lambda: put(2.0), lambda: put(5.0)])


@family.holder("two", "five", "plain")
def member_of_a_metaclass_replaced() -> World:
    def f(x):
        return x * Made.prop, Made.twice()

    states = [
        setting(Meta, prop=property(lambda cls: value), twice=lambda cls, value=value: value) for value in (2.0, 5.0)
    ]
    return World(f, [*states, setting(Meta, prop=3.0, twice=staticmethod(lambda: 4.0))])


@family.holder("absent", "two", "five")
def getattr_of_a_metaclass() -> World:
    def f(x):
        return x * Made.unknown

    hooks = [setting(Meta, __getattr__=lambda cls, name, value=value: value) for value in (2.0, 5.0)]
    return World(f, [deleting(Meta, "__getattr__"), *hooks])


@family.holder("default", "always", "never")
def instance_check_of_a_metaclass() -> World:
    def f(x, o):
        return x * (2 if isinstance(o, Made) else 3), issubclass(type(o), Made)

    def hook(answer):
        return setting(Meta, __instancecheck__=lambda cls, o: answer, __subclasscheck__=lambda cls, o: answer)

    return World(f, [deleting(Meta, "__instancecheck__", "__subclasscheck__"), hook(True), hook(False)], _on(Plain()))


@family.program
def abstract_class_registers() -> Case:
    class A(abc.ABC):
        pass

    class B(abc.ABC):
        pass

    class One:
        pass

    class Two(One):
        pass

    def f(x, o):
        return x * (2 if isinstance(o, A) else 3) + (10 if isinstance(o, (B, int)) else 20), issubclass(Two, A)

    one, two = One(), Two()
    steps = [lambda: None, lambda: None, lambda: A.register(Two), lambda: None, lambda: B.register(One)]
    steps += [lambda: None, lambda: A.register(One), lambda: None]
    calls = [(torch.ones(2), one), (torch.ones(2), two)] * 4
    return Case(f, calls, before=steps)


@family.program
def abstract_class_registered_after_the_other() -> Case:
    class A(abc.ABC):
        pass

    class One:
        pass

    class Two:
        pass

    A.register(One)

    def f(x, o):
        return x * (2 if isinstance(o, A) else 3)

    one, two = One(), Two()
    calls = [(torch.ones(2), thing) for thing in (two, one, two, one, two)]
    return Case(f, calls, before=[lambda: None, lambda: None, lambda: A.register(Two), lambda: None, lambda: None])


@family.holder("yes", "no", "undecided")
def subclass_hook_changed() -> World:
    class A(abc.ABC):
        answer = True

        @classmethod
        def __subclasshook__(cls, other):
            return cls.answer

    class One:
        pass

    def f(x, o):
        return x * (2 if isinstance(o, A) else 3)

    def put(answer):
        A.answer = answer
        A._abc_caches_clear()

    return World(f, [lambda: put(True), lambda: put(False), lambda: put(NotImplemented)], _on(One()))


@family.holder("met", "abstract_again")
def abstract_methods_changed() -> World:
    class A(abc.ABC):
        @abc.abstractmethod
        def go(self): ...

    class B(A):
        def go(self):
            return 2

    def f(x):
        return x * B().go()

    states = [setting(B, __abstractmethods__=frozenset()), setting(B, __abstractmethods__=frozenset(["go"]))]
    return World(f, states)
