"""Graph breaks of a registered kind, at every position around graphs: flags and data of tensors, classes, weak
references and generators; each once, between or after graphs, or at all of these positions.
"""

import functools
import itertools
import weakref

import torch
from torch import nn

from integration_tests.harness.differential import Case

POSITIONS = {"before": (0,), "between": (1,), "behind": (2,), "everywhere": (0, 1, 2)}


def require(weight, holder):
    weight.requires_grad_(True)


def free(weight, holder):
    weight.requires_grad_(False)


def toggle(weight, holder):
    weight.requires_grad = not weight.requires_grad


def new_data(weight, holder):
    weight.data = weight.data + 1


def data_in_place(weight, holder):
    weight.data.add_(1)


def other_data(weight, holder):
    weight.data = torch.ones(3) * 4


def class_attribute(weight, holder):
    type(holder).scale = type(holder).scale + 1


def class_attribute_deleted(weight, holder):
    type(holder).extra = getattr(type(holder), "extra", 0) + 1
    del type(holder).scale
    type(holder).scale = 3.0


def method(weight, holder):
    type(holder).run = lambda self, x: x * self.scale + len(type(self).log)


def list_of_a_class(weight, holder):
    type(holder).log.append(1)


def reference(weight, holder):
    made = weakref.ref(holder)
    holder.kept.append(made)
    holder.n = made() is holder


def reference_to_a_tensor(weight, holder):
    made = weakref.ref(weight)
    holder.n = made() is weight


def table_of_references(weight, holder):
    table = weakref.WeakValueDictionary()
    table["holder"] = holder
    holder.n = len(table)


def finalizer(weight, holder):
    holder.thing = Thing()
    weakref.finalize(holder.thing, holder.log.append, 5)


def one_of_a_generator(weight, holder):
    holder.last = next(holder.numbers)


def some_of_a_generator(weight, holder):
    for holder.last in holder.numbers:
        if holder.last % 4 == 3:
            break


def sent_to_a_generator(weight, holder):
    holder.numbers = counting()
    next(holder.numbers)
    holder.last = holder.numbers.send(4)


OPERATIONS = [
    require, free, toggle, new_data, data_in_place, other_data, class_attribute, class_attribute_deleted, method,
    list_of_a_class, reference, reference_to_a_tensor, table_of_references, finalizer, one_of_a_generator,
    some_of_a_generator, sent_to_a_generator,
]  # fmt: skip


class Thing:
    """Something to refer to."""


def counting():
    n = 0
    while True:
        n += (yield n) or 1


def case_of(operation, place, parameter, backward) -> Case:
    class Holder:
        scale = 2.0
        log = []

        def __init__(self):
            self.kept, self.numbers, self.last, self.n = [], counting(), 0, 0

        def run(self, x):
            return x * self.scale

    holder = Holder()
    weight = nn.Parameter(torch.ones(3)) if parameter else torch.ones(3)
    leaf = torch.ones(1, requires_grad=True)

    def f(x):
        y = x + leaf
        if 0 in place:
            operation(weight, holder)
        y = holder.run(y) * weight
        if 1 in place:
            operation(weight, holder)
        z = holder.run(y.sum() + weight)
        if 2 in place:
            operation(weight, holder)
        flags = z.requires_grad, weight.requires_grad
        return z, holder.last, holder.n, flags, type(holder).scale, len(Holder.log)

    watch = [weight, leaf, lambda: (Holder.scale, Holder.log, holder.last, holder.n)]
    return Case(f, [(torch.arange(3.0) + i,) for i in range(4)], watch=watch, backward=backward)


FLAGS = (False, True)
CASES = {
    f"{operation.__name__}__{place}__{'parameter' if parameter else 'buffer'}__{'backward' if backward else 'forward'}":
    functools.partial(case_of, operation, POSITIONS[place], parameter, backward)
    for operation, place, parameter, backward in itertools.product(OPERATIONS, POSITIONS, FLAGS, FLAGS)
}  # fmt: skip
