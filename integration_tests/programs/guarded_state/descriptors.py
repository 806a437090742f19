"""Properties and descriptors changed between calls: what they are, what they close over, what they hold."""

import torch

from integration_tests.programs.families import Family, World, deleting, setting

family = Family()


class Base:
    scale = 2.0

    def __init__(self, k=1.0):
        self.k = k

    def apply(self, x):
        return x * self.scale + self.k


class Descriptor:
    def __init__(self, value):
        self.value = value

    def __get__(self, instance, owner=None):
        return self.value


class DataDescriptor(Descriptor):
    def __set__(self, instance, value):
        instance.__dict__["stored"] = value + self.value


class Described:
    plain = Descriptor(2.0)
    data = DataDescriptor(2.0)


def _on(thing):
    return lambda: (torch.arange(1.0, 4.0), thing)


@family.holder("two", "five", "plain", "gone")
def property_replaced() -> World:
    thing = Base()

    def f(x, o):
        return x * o.p

    states = [setting(Base, p=property(lambda self, value=value: self.k * value)) for value in (2.0, 5.0)]
    return World(f, [*states, setting(Base, p=3.0), deleting(Base, "p")], _on(thing))


@family.holder("two", "five", "setter_too")
def property_object_read() -> World:
    def f(x):
        return x * Base.p.fget(None), Base.p.fset is None, vars(Base)["p"].__doc__

    states = [setting(Base, p=property(lambda self, value=value: value)) for value in (2.0, 5.0)]
    return World(f, [*states, setting(Base, p=property(lambda self: 3.0, lambda self, v: None, doc="said"))])


@family.holder("two", "five")
def property_with_a_cell() -> World:
    value = 2.0
    log: list = []

    class C:
        @property
        def p(self):
            return value

        @p.setter
        def p(self, new):
            log.append(new + value)

    def put(new):
        nonlocal value
        value = new

    def f(x, o):
        o.p = 1.0
        return x * o.p

    return World(f, [lambda: put(2.0), lambda: put(5.0)], _on(C()), watch=[log])


@family.holder("two", "five", "another_function")
def descriptor_with_a_cell() -> World:
    value = 2.0

    class D:
        def __get__(self, instance, owner=None):
            return value

    class C:
        d = D()

    own = D.__get__

    def put(new):
        nonlocal value
        value = new
        D.__get__ = own

    def f(x, o):
        return x * o.d + C.d

    return World(f, [lambda: put(2.0), lambda: put(5.0), setting(D, __get__=lambda *a: 7.0)], _on(C()))


@family.holder("two", "five", "without_set")
def data_descriptor_with_a_cell() -> World:
    value = 2.0

    class D:
        def __get__(self, instance, owner=None):
            return instance.__dict__.get("held", 0.0) + value

        def __set__(self, instance, new):
            instance.__dict__["held"] = new * value

    class C:
        d = D()

    own, thing = D.__set__, C()

    def put(new):
        nonlocal value
        value = new
        D.__set__ = own
        vars(thing).clear()

    def without():
        del D.__set__
        vars(thing).clear()

    def f(x, o):
        o.d = 3.0
        return x * o.d, dict(vars(o))

    return World(f, [lambda: put(2.0), lambda: put(5.0), lambda: (put(2.0), without())], _on(thing), watch=[thing])


@family.holder("two", "five", "attribute")
def descriptor_changed_in_place() -> World:
    thing = Described()

    def f(x, o):
        o.data = 1.0
        return x * o.plain + o.data, vars(o)

    def changed(value):
        return setting(vars(Described)["plain"], value=value), setting(vars(Described)["data"], value=value)

    def put(value, stored=None):
        vars(thing).clear()
        for step in changed(value):
            step()
        if stored:
            vars(thing)["plain"] = stored

    return World(f, [lambda: put(2.0), lambda: put(5.0), lambda: put(2.0, 9.0)], _on(thing), watch=[thing])
