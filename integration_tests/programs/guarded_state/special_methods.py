"""Special methods of a class replaced, added and deleted between calls."""

import functools

import torch

from integration_tests.programs.families import Family, World, deleting, setting

family = Family()


class Base:
    scale = 2.0

    def __init__(self, k=1.0):
        self.k = k

    def apply(self, x):
        return x * self.scale + self.k


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
