"""The registry of programs, and what their hooks share."""

from __future__ import annotations

import torch

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def leaves(*sizes):
    return [torch.randn(*size, requires_grad=True) for size in sizes or ((3, 4), (4, 4))]


def seen(value):
    """Return what a hook sees, as plain data."""
    if isinstance(value, torch.Tensor):
        return [round(number, 4) for number in value.detach().to_dense().double().flatten().tolist()]
    return [seen(one) for one in value] if isinstance(value, (list, tuple)) else value


def noting(log, name, result=None):
    """Return a hook that notes its arguments; `result(*arguments)` is what it returns."""

    def hook(*arguments):
        log.append((name, seen(arguments)))
        return None if result is None else result(*arguments)

    return hook
