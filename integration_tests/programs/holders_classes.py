"""Classes changed between calls: attributes, inheritance, metaclasses, descriptors and special methods."""

import abc
import functools

import torch

from integration_tests.differential import Case
from integration_tests.families import Family, World, deleting, setting

family = Family()


class Base:
    scale = 2.0

    def __init__(self, k=1.0):
        self.k = k

    def apply(self, x):
        return x * self.scale + self.k


class Derived(Base):
    pass


class Meta(type):
    scale = 2.0

    def twice(cls):
        return 2.0

    @property
    def prop(cls):
        return 2.0


class Made(metaclass=Meta):
    pass


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


class Special:
    def __len__(self):
        return 2

    def __getitem__(self, key):
        if key > 3:
            raise IndexError(key)
        return key

    def __contains__(self, item):
        return item == 1

    def __iter__(self):
        return iter((1, 2))

    def __add__(self, other):
        return 3

    def __eq__(self, other):
        return False

    def __hash__(self):
        return 1

    def __call__(self, x):
        return x * 2

    def __repr__(self):
        return "special"

    def __enter__(self):
        return 2

    def __exit__(self, *error):
        return False


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

    return World(f, [deleting(Meta, "__instancecheck__", "__subclasscheck__"), hook(True), hook(False)], _on(Base()))


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


@family.holder("absent", "two", "five")
def getattr_added() -> World:
    def f(x, o):
        return x * getattr(o, "unknown", 1.0), hasattr(o, "other")

    hooks = [setting(Base, __getattr__=lambda self, name, value=value: value) for value in (2.0, 5.0)]
    return World(f, [deleting(Base, "__getattr__"), *hooks], _on(Base()))


@family.holder("absent", "two", "five")
def getattribute_added() -> World:
    def hook(value):
        def __getattribute__(self, name):
            return value if name == "k" else object.__getattribute__(self, name)

        return setting(Base, __getattribute__=__getattribute__)

    def f(x, o):
        return x * o.k, o.scale

    return World(f, [deleting(Base, "__getattribute__"), hook(2.0), hook(5.0)], _on(Base()))


@family.holder("absent", "logging", "refusing")
def setattr_added() -> World:
    log: list = []

    def logging(self, name, value):
        log.append(name)
        object.__setattr__(self, name, value)

    def refusing(self, name, value):
        log.append(value)
        raise AttributeError(f"no {name}")

    thing = Base()

    def f(x, o):
        o.k = 3.0
        return x * o.k

    states = [deleting(Base, "__setattr__"), setting(Base, __setattr__=logging), setting(Base, __setattr__=refusing)]
    return World(f, states, _on(thing), watch=[log, thing])


SPECIAL = {
    "__len__": (lambda self: 5, lambda o: len(o)),
    "__getitem__": (lambda self, key: 5, lambda o: o[2]),
    "__contains__": (lambda self, item: True, lambda o: 5 in o),
    "__iter__": (lambda self: iter((5,)), lambda o: sum(o)),
    "__add__": (lambda self, other: 5, lambda o: o + 1),
    "__eq__": (lambda self, other: True, lambda o: 2 if o == 1 else 3),
    "__call__": (lambda self, x: x * 5, lambda o: o(2)),
    "__repr__": (lambda self: "replaced", lambda o: len(repr(o))),
    "__enter__": (lambda self: 5, lambda o: _entered(o)),
}


def _entered(o):
    with o as n:
        return n


def _special(name: str) -> World:
    real, (replaced, use) = vars(Special)[name], SPECIAL[name]

    def f(x, o):
        return x * use(o)

    return World(
        f,
        [setting(Special, **{name: real}), setting(Special, **{name: replaced}), deleting(Special, name)],
        _on(Special()),
    )


for _name in SPECIAL:
    _make = functools.partial(_special, _name)
    _make.__name__ = f"special_method{_name.rstrip('_')}"  # type: ignore[attr-defined]
    family.holder("own", "replaced", "gone")(_make)


@family.holder("absent", "true", "false")
def bool_added() -> World:
    def f(x, o):
        return x * (2 if o else 3), not o

    hooks = [setting(Base, __bool__=lambda self, answer=answer: answer) for answer in (True, False)]
    return World(f, [deleting(Base, "__bool__"), *hooks], _on(Base()))


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
