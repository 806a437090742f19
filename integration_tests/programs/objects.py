"""Python's object model inside compiled functions: hooks into attribute access, calls, operators and life."""

import abc
import contextlib
import copy
import operator
import weakref

import torch
from torch import nn

from integration_tests.harness.differential import Case


def _calls(f, n: int = 3, **kw) -> Case:
    return Case(f, [(torch.randn(2, 3),) for _ in range(n)], **kw)


class Proxy:
    def __init__(self, target):
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "log", [])

    def __getattr__(self, name):
        self.log.append(f"get {name}")
        return getattr(self._target, name)

    def __setattr__(self, name, value):
        self.log.append(f"set {name}")
        setattr(self._target, name, value)

    def __delattr__(self, name):
        self.log.append(f"del {name}")
        delattr(self._target, name)


class Plain:
    kind = "plain"

    def __init__(self):
        self.value = 1


def attribute_proxies() -> Case:
    proxy = Proxy(Plain())

    def f(x):
        proxy.value = proxy.value + 1
        proxy.extra = 5
        y = x * proxy.value
        del proxy.extra
        return y, hasattr(proxy, "extra"), getattr(proxy, "nothing", "default"), proxy.kind

    return _calls(f, watch=[proxy.log])


class Tracked:
    def __init__(self, name=None):
        self.name = name

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        instance.log.append(f"get {self.name}")
        return instance.__dict__.get(self.name, 0)

    def __set__(self, instance, value):
        instance.log.append(f"set {self.name}")
        instance.__dict__[self.name] = value


class Described:
    a = Tracked()
    b = Tracked()

    def __init__(self):
        self.log: list = []


def descriptors() -> Case:
    thing = Described()

    def f(x):
        thing.a += 2
        thing.b = thing.a
        thing.__dict__["a"] = "hidden"
        return x * thing.a, thing.b, type(thing).a is Described.__dict__["a"], list(thing.log)

    return _calls(f, watch=[thing])


class Base:
    registry: list = []
    count = 0

    def __init_subclass__(cls, tag="none", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag
        Base.registry.append(cls.__name__)

    def __init__(self, k):
        self.k = k
        type(self).count += 1

    def apply(self, x):
        return x * self.k

    @classmethod
    def make(cls, k):
        return cls(k)

    @staticmethod
    def twice(x):
        return x * 2


class Left(Base, tag="left"):
    def apply(self, x):
        return super().apply(x) + 1


class Right(Base, tag="right"):
    def apply(self, x):
        return super().apply(x) * 3


class Diamond(Left, Right, tag="diamond"):
    def apply(self, x):
        return super().apply(x) - super(Left, self).apply(x)


def inheritance() -> Case:
    def f(x):
        thing = Diamond.make(2)
        before = Diamond.count
        other = Left(3)
        return (
            thing.apply(x),
            Base.twice(x),
            thing.tag,
            before,
            Diamond.count - before,
            isinstance(thing, Right),
            [c.__name__ for c in Diamond.__mro__],
            other.apply(x),
            issubclass(Left, Base),
        )

    def watched(x):
        result = f(x)
        return result

    Diamond.count = Left.count = 0
    return _calls(watched)


class Vector:
    __slots__ = ("__weakref__", "data")
    __hash__ = None

    def __init__(self, *data):
        self.data = list(data)

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self.data, other.data))) if isinstance(other, Vector) else NotImplemented

    def __radd__(self, other):
        return Vector(*(a + other for a in self.data))

    def __iadd__(self, other):
        self.data = [a + other for a in self.data]
        return self

    def __mul__(self, other):
        return NotImplemented

    def __getitem__(self, index):
        return self.data[index]

    def __setitem__(self, index, value):
        self.data[index] = value

    def __len__(self):
        return len(self.data)

    def __contains__(self, item):
        return item in self.data

    def __eq__(self, other):
        return self.data == other.data

    def __bool__(self):
        return any(self.data)

    def __call__(self, k):
        return [a * k for a in self.data]

    def __repr__(self):
        return f"Vector{tuple(self.data)}"

    def __format__(self, spec):
        return spec + str(len(self.data))

    def __index__(self):
        return len(self.data)


def operators() -> Case:
    def f(x):
        v = Vector(1, 2)
        w = v
        v += 1
        total = 5 + (v + w)
        try:
            v * 2
        except TypeError as error:
            failed = str(error)
        v[0] = 7
        return (
            x * v[0],
            total.data,
            w is v,
            failed,
            len(v),
            7 in v,
            v == Vector(7, 3),
            bool(Vector(0)),
            v(2),
            repr(v),
            f"{v:abc}",
            [0, 1, 2, 3][v],
            list(iter(v)),
            operator.index(v),
            sorted([3, 1], key=v.data.count),
        )

    return _calls(f)


class Dyn:
    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return super().__getattribute__(name)


def getattribute() -> Case:
    thing = Dyn()
    thing.plain = 1

    def f(x):
        thing.plain += 1
        return x * thing.magic, thing.plain, vars(thing)

    return _calls(f)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    def name(self):
        return type(self).__name__


class Square(Shape):
    def __init__(self, n):
        self.n = n

    def area(self):
        return self.n**2


def abstract_classes() -> Case:
    def f(x):
        try:
            Shape()
        except TypeError as error:
            failed = type(error).__name__
        return x * Square(3).area(), Square(2).name, failed, isinstance(Square(1), Shape)

    return _calls(f)


class Meta(type):
    made = 0

    def __call__(cls, *args):
        Meta.made += 1
        instance = super().__call__(*args)
        instance.stamped = True
        return instance

    def __len__(cls):
        return 3


class Stamped(metaclass=Meta):
    def __init__(self, k):
        self.k = k


def metaclasses() -> Case:
    def f(x):
        thing = Stamped(2)
        return x * thing.k, thing.stamped, len(Stamped)

    return _calls(f)


class Singleton:
    instance = None

    def __new__(cls, *args):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
            cls.instance.made = 0
        return cls.instance

    def __init__(self, n):
        self.made += n


def singletons() -> Case:
    Singleton.instance = None

    def f(x):
        one, two = Singleton(1), Singleton(2)
        return x * one.made, one is two

    return _calls(f)


def context_managers() -> Case:
    log: list = []

    @contextlib.contextmanager
    def scope(name):
        log.append(f"enter {name}")
        try:
            yield len(log)
        except ValueError as error:
            log.append(f"caught {error}")
        finally:
            log.append(f"exit {name}")

    def f(x):
        with scope("a") as n, scope("b"):
            y = x * n
            log.append("body")
            raise ValueError("v")
        with contextlib.suppress(KeyError), scope("c"):
            y = y + {}["k"]
        with contextlib.ExitStack() as stack:
            stack.enter_context(scope("d"))
            stack.callback(log.append, "callback")
        with contextlib.nullcontext(5) as five:
            y = y + five
        return y, list(log)

    return _calls(f, watch=[log])


def weak_references() -> Case:
    thing = Plain()
    ref = weakref.ref(thing)

    def f(x):
        return x * ref().value, ref() is thing

    return _calls(f)


def objects_that_change_class() -> Case:
    class A:
        k = 2

    class B:
        k = 3

    thing = A()

    def f(x):
        y = x * thing.k
        thing.__class__ = B if type(thing) is A else A
        return y, type(thing).__name__

    return _calls(f, watch=[thing])


def class_attributes_change() -> Case:
    class A:
        k = 2
        items: list = []

    thing = A()

    def f(x):
        y = x * thing.k
        A.k += 1
        thing.items.append(A.k)
        return y, list(A.items)

    return _calls(f)


def monkeypatched_methods() -> Case:
    class A:
        def k(self):
            return 2

    def other(self):
        return 5

    thing = A()

    def f(x, patch):
        y = x * thing.k()
        if patch:
            A.k = other
        return y, x * thing.k()

    x = torch.ones(2)
    return Case(f, [(x, False), (x, True), (x, False)])


class Counting(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.history: list = []
        self.last = None

    def forward(self, x):
        self.seen += 1
        self.history.append(x.shape[0])
        Counting.calls += 1
        y = self.linear(x) * self.seen
        self.last = y.detach()
        return y, len(self.history)


def modules_with_state() -> Case:
    model = Counting()
    return Case(model, [(torch.randn(2, 3),), (torch.randn(4, 3),), (torch.randn(2, 3),)], watch=[model])


def hooks_added_between_calls() -> Case:
    layer = nn.Linear(3, 3)
    log: list = []
    handles: list = []

    def hook(module, args, out):
        log.append("after")
        return out * 2

    def before(module, args):
        log.append("before")
        return (args[0] + 1,)

    def f(x, step):
        y = layer(x)
        if step == 0:
            handles.append(layer.register_forward_hook(hook))
        elif step == 1:
            handles.append(layer.register_forward_pre_hook(before))
        elif step == 3:
            handles.pop(0).remove()
        return y

    return Case(f, [(torch.ones(1, 3), step) for step in range(6)], watch=[log])


def deep_copies_of_modules() -> Case:
    layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def f(x):
        twin = copy.deepcopy(layer)
        with torch.no_grad():
            twin[0].weight.mul_(2)
        return layer(x), twin(x), list(twin.state_dict())

    return _calls(f)


def modules_swapped_and_moved() -> Case:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def f(x, step):
        y = model(x)
        if step == 0:
            model[1] = nn.Tanh()
        elif step == 1:
            model.append(nn.Identity())
        elif step == 2:
            model.eval()
        elif step == 3:
            model.double()
            return y
        return y, model.training, len(model)

    return Case(f, [(torch.ones(1, 3), step) for step in range(4)], watch=[model])


class Mixed:
    __slots__ = ("__dict__", "slot")


def slots_beside_a_dictionary() -> Case:
    thing = Mixed()
    thing.slot, thing.plain = 1, 2

    def f(x):
        thing.slot += 1
        thing.extra = thing.plain
        y = x * thing.slot
        del thing.extra
        return y, sorted(vars(thing)), hasattr(thing, "extra")

    return _calls(f, watch=[thing])
