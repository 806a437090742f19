"""Subclasses of `property`, `classmethod`, `staticmethod` and `nn.Parameter` that keep their behaviour."""

import pytest
import torch
from driver import compiled, same
from torch import nn

X = torch.arange(3.0)


class Lazy(property):
    pass


class Documented(property):
    def __init__(self, fget=None, fset=None, fdel=None, doc=None):
        super().__init__(fget, fset, fdel, doc)
        self.unit = 3


class Method(classmethod):
    pass


class Static(staticmethod):
    pass


class Owner:
    def __init__(self):
        self.k = 2

    @Lazy
    def value(self):
        return self.k + 1

    @Documented
    def settable(self):
        return self.k

    @settable.setter
    def settable(self, k):
        self.k = k

    @Method
    def made(cls, x):
        return cls().value * x

    @Static
    def twice(x):
        return x * 2


class Named(nn.Parameter):
    pass


class Tagged(nn.Parameter):
    tag = 3

    def scaled(self):
        return self * self.tag

    @property
    def rows(self):
        return self.shape[0]

    def __repr__(self):
        return "tagged"


class Counting(nn.Parameter):
    def sum(self, *args):
        return super().sum(*args) + 1


def set_and_read(x):
    owner = Owner()
    owner.settable = 5
    return owner.settable * x, owner


WITHOUT_BREAKS = {
    "read": lambda x: x * Owner().value,
    "set": set_and_read,
    "class method": lambda x: (Owner.made(x), Owner().made(x)),
    "static method": lambda x: (Owner.twice(x), Owner().twice(x)),
}


@pytest.mark.parametrize("name", WITHOUT_BREAKS)
def test_descriptors(name):
    fn = compiled(WITHOUT_BREAKS[name])
    for _ in range(2):
        assert same(fn(X), WITHOUT_BREAKS[name](X))
    assert not fn.of_kind("break") and len(fn.graphs) == 1


def use(x, p):
    return p.scaled() + x * p.rows, type(p) is Tagged, isinstance(p, Tagged), isinstance(p, nn.Parameter), type(p * 1)


def mark(x, p):
    p.extra = p.tag + 1
    return x * p.extra


@pytest.mark.parametrize("function", [use, mark])
def test_parameters_with_additions(function):
    mine, theirs, fn = Tagged(torch.ones(3)), Tagged(torch.ones(3)), compiled(function)
    for _ in range(2):
        found, expected = fn(X, mine), function(X, theirs)
        assert same(found, expected) and vars(mine) == vars(theirs)
    assert not fn.of_kind("break")


@pytest.mark.parametrize("cls", [Named, Tagged])
def test_modules_with_parameters_of_a_subclass(cls):
    module, plain = nn.Linear(3, 3), nn.Linear(3, 3)
    plain.load_state_dict(module.state_dict())
    module.weight = cls(module.weight.detach().clone())
    fn = compiled(lambda x: module(x))
    fn(X).sum().backward()
    plain(X).sum().backward()
    assert not fn.of_kind("break") and len(fn.graphs) == 1
    assert torch.equal(module.weight.grad, plain.weight.grad) and type(module.weight) is cls
    assert compiled(lambda x: module.weight)(X) is module.weight


def test_a_parameter_that_changes_an_operation_breaks():
    p, fn = Counting(torch.ones(3)), compiled(lambda x: x + p.sum())
    assert torch.equal(fn(X), X + 4) and fn.of_kind("break")
