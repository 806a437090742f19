"""Classes changed between calls: attributes, dictionaries, methods, and the hierarchy."""

import torch

from integration_tests.programs.families import Family, World, deleting, setting

family = Family()


class Base:
    scale = 2.0

    def __init__(self, k=1.0):
        self.k = k

    def apply(self, x):
        return x * self.scale + self.k


class Derived(Base):
    pass


def _on(thing):
    return lambda: (torch.arange(1.0, 4.0), thing)


@family.holder("two", "five", "gone")
def class_attribute() -> World:
    def f(x):
        return x * Base.scale, hasattr(Base, "scale")

    return World(f, [setting(Base, scale=2.0), setting(Base, scale=5.0), deleting(Base, "scale")])


@family.holder("on_base", "on_class", "on_instance", "nowhere")
def attribute_of_an_instance() -> World:
    thing = Derived()

    def everywhere(base=None, derived=None, own=None):
        def put():
            for holder, value in ((Base, base), (Derived, derived), (thing, own)):
                (setting(holder, scale=value) if value else deleting(holder, "scale"))()

        return put

    def f(x, o):
        return x * o.scale, getattr(type(o), "scale", 1.0), vars(o).get("scale")

    return World(f, [everywhere(2.0), everywhere(2.0, 3.0), everywhere(2.0, 3.0, 4.0), everywhere()], _on(thing))


@family.holder("two", "five", "gone")
def class_dictionary() -> World:
    def f(x):
        return x * vars(Base)["scale"], "scale" in Base.__dict__

    return World(f, [setting(Base, scale=2.0), setting(Base, scale=5.0), deleting(Base, "scale")])


@family.holder("two", "five", "gone")
def class_dictionary_by_get() -> World:
    fields = Base.__dict__

    def f(x):
        return x * fields.get("scale", 1.0), [name for name in fields if name[0] != "_"]

    return World(f, [setting(Base, scale=2.0), setting(Base, scale=5.0), deleting(Base, "scale")])


@family.holder("two", "five", "gone")
def class_dictionary_of_an_argument() -> World:
    def f(x, o):
        return x * type(o).__dict__.get("scale", 1.0) * vars(type(o).__mro__[1]).get("scale", 1.0)

    return World(f, [setting(Base, scale=2.0), setting(Base, scale=5.0), deleting(Base, "scale")], _on(Derived()))


@family.holder("two", "five")
def class_attribute_written_inside() -> World:
    def f(x):
        Base.scale = Derived.scale + 1
        y = x * vars(Base)["scale"]
        Derived.scale = 7.0
        z = y + Derived.scale
        del Derived.scale
        return z, Derived().scale

    return World(f, [setting(Base, scale=2.0), setting(Base, scale=5.0)])


@family.holder("on_base", "on_class", "on_instance")
def method_replaced() -> World:
    thing, real = Derived(), Base.apply

    def everywhere(*states):
        def put():
            for holder, method in zip((Base, Derived, thing), states, strict=True):
                (setting(holder, apply=method) if method else deleting(holder, "apply"))()

        return put

    def f(x, o):
        return o.apply(x), Derived.apply(o, x)

    states = (
        everywhere(real, None, None),
        everywhere(real, lambda s, x: x - s.k, None),
        everywhere(real, None, torch.neg),
    )
    return World(f, states, _on(thing))


@family.holder("function", "static", "class_method", "bound")
def kind_of_method_changed() -> World:
    def f(x, o):
        return o.m(x)

    kinds = (
        lambda self, x: x * self.k,
        staticmethod(lambda x: x * 5),
        classmethod(lambda cls, x: x * cls.scale),
        Base(9.0).apply,
    )
    return World(f, [setting(Base, m=kind) for kind in kinds], _on(Base(3.0)))


@family.holder("alone", "inserted", "bases_changed")
def class_inserted_into_the_hierarchy() -> World:
    class Root:
        def go(self, x):
            return x

    class A(Root):
        pass

    class B(Root):
        pass

    class Other(Root):
        def go(self, x):
            return super().go(x) * 5

    class C(A, B):
        def go(self, x):
            return super().go(x) + 1

    def put(bases, own):
        C.__bases__ = bases
        (setting(B, go=own) if own else deleting(B, "go"))()

    def f(x, o):
        return o.go(x), [c.__name__ for c in type(o).__mro__], isinstance(o, B)

    states = [
        lambda: put((A, B), None),
        lambda: put((A, B), lambda self, x: x * 3),
        lambda: put((A, Other), None),
    ]
    return World(f, states, _on(C()))


@family.holder("first", "second", "third")
def class_of_an_instance_assigned() -> World:
    class A(Base):
        scale = 3.0

    class B(Base):
        def apply(self, x):
            return x - self.k

    thing = Base()

    def f(x, o):
        return o.apply(x), type(o).__name__, isinstance(o, A), o.__class__ is B

    return World(f, [setting(thing, __class__=kind) for kind in (Base, A, B)], _on(thing))


@family.holder("first", "second")
def class_of_an_instance_assigned_inside() -> World:
    class A(Base):
        scale = 3.0

    class B(Base):
        scale = 7.0

    thing = A()

    def f(x, o):
        before = o.apply(x)
        o.__class__ = B if type(o) is A else A
        return before, o.apply(x), type(o).__name__

    return World(f, [setting(thing, __class__=A), setting(thing, __class__=B)], _on(thing), watch=[thing])


@family.holder("plain", "two", "five")
def new_of_a_class_replaced() -> World:
    def made(value):
        def __new__(cls, *args):
            o = object.__new__(cls)
            o.extra = value
            return o

        return setting(Base, __new__=staticmethod(__new__))

    def f(x):
        o = Base(3.0)
        return x * o.k, getattr(o, "extra", 0.0), o

    plain = setting(Base, __new__=staticmethod(lambda cls, *args: object.__new__(cls)))
    return World(f, [plain, made(2.0), made(5.0)])


@family.holder("own", "replaced", "gone")
def init_of_a_class_replaced() -> World:
    real = Base.__init__

    def another(self, k=1.0):
        self.k = k * 10
        self.more = "more"

    def f(x):
        return Base().k * x, Base() if "__init__" not in vars(Base) else Base(2.0)

    return World(f, [setting(Base, __init__=real), setting(Base, __init__=another), deleting(Base, "__init__")])


@family.holder("empty", "two", "five")
def class_annotations_and_doc() -> World:
    def state(doc, **annotations):
        return setting(Base, __doc__=doc, __annotations__=annotations)

    def f(x):
        return x * (len(Base.__doc__ or "") + 1), list(Base.__annotations__), Base.__name__, Base.__qualname__[-4:]

    return World(f, [state(None), state("tw", a=int), state("fives", b=int, a=float)])


@family.holder("first", "second")
def class_renamed() -> World:
    thing = Base()

    def f(x):
        return x * len(type(thing).__name__), type(thing).__qualname__, Base.__module__

    return World(f, [setting(Base, __name__=n, __qualname__=n, __module__=n.lower()) for n in ("Ab", "Abcde")])
