"""Programs that the native tests run, and their agreement with the Python text."""

import torch

from framesmith_guards import (
    Guard,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    compile_guards,
    parameter_source,
    state_guards,
    submodule_source,
)

X = LocalSource("x")


def f(x, y=None):
    return x


def native(guards, argnames=("x",), **options):
    return compile_guards([*state_guards(), *guards], argnames, native=True, **options)


def agreed(program, args, function=f):
    """The native answer, which the text and the reference share."""
    answer = program(args, function)
    assert answer is program.check(args, function)
    assert answer is (program.explain(args, function) is None)
    return answer


def layers(count):
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(count)])
    for layer in model:
        layer.scale = 0.5
    guards = [
        Guard(X, "TYPE_MATCH", torch.nn.Sequential),
        Guard(ItemSource(InstanceDictSource(X), "_modules"), "DICT_KEYS", model._modules),
    ]
    for index, layer in enumerate(model):
        source = submodule_source(X, str(index))
        guards += [
            Guard(source, "TYPE_MATCH", torch.nn.Linear),
            Guard(InstanceDictSource(source), "DICT_NOT_CONTAINS", "forward"),
            Guard(ItemSource(InstanceDictSource(source), "_forward_hooks"), "LENGTH", 0),
            Guard(ItemSource(InstanceDictSource(source), "scale"), "EQUALS_MATCH", 0.5),
            Guard(parameter_source(source, "weight"), "TENSOR_MATCH", layer.weight),
            Guard(parameter_source(source, "bias"), "TENSOR_MATCH", layer.bias),
        ]
    return model, guards
