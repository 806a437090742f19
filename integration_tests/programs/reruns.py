"""Frames that begin again because their graph failed: what of Python and of torch's state they hold at that moment."""

import torch
import torch.nn.functional as F
from torch import nn

from integration_tests.harness.differential import Case


def _indices(f, **kw) -> Case:
    return Case(f, [(torch.randn(4, 2), torch.tensor([i])) for i in (1, 9, 2)], **kw)


class Table(nn.Module):
    def forward(self, table, index):
        return table[index] * 2


class Careful(Table):
    def forward(self, table, index):
        try:
            return super().forward(table, index)
        except IndexError:
            return (lambda: self.__class__.__name__)(), table


def super_and_class_cells() -> Case:
    return _indices(Careful())


def local_names() -> Case:
    def f(table, index, a=1, *rest, k=2, **kw):
        b = 3
        try:
            y = table[index]
        except IndexError as error:
            return sorted(locals()), str(error)
        return y, a, b

    return _indices(f)


def cells_of_arguments() -> Case:
    def f(table, index):
        n = 0

        def step():
            nonlocal n, table
            n += 1
            table = table * 2
            return table[index]

        try:
            return step(), n
        except IndexError:
            return n, table

    return _indices(f)


def generators() -> Case:
    def f(table, index):
        def rows():
            for k in range(2):
                yield table[index] + k

        out = []
        try:
            for row in rows():
                out.append(row * 2)  # noqa: PERF401
        except IndexError as error:
            out.append(str(error))
        return out

    return _indices(f)


def blocks_in_several_frames() -> Case:
    log: list = []

    def inner(table, index):
        log.append("inner")
        print("inner")
        try:
            return table[index]
        except KeyError:
            log.append("never")
        finally:
            log.append("left inner")

    def outer(table, index):
        log.append("outer")
        try:
            return inner(table, index)
        finally:
            log.append("left outer")

    def f(table, index):
        try:
            return outer(table, index)
        except IndexError as error:
            log.append("caught")
            raise RuntimeError("wrapped") from error

    return _indices(f, watch=[log])


def modes_of_torch() -> Case:
    def cast(table, index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = table @ table.t()
            try:
                y = y[index]
            except IndexError:
                return y.dtype, torch.is_autocast_enabled("cpu")
        return y

    def inference(table, index):
        with torch.inference_mode():
            return table[index].sum() + 1

    def f(table, index):
        first = cast(table, index)
        try:
            second = inference(table, index).is_inference()
        except IndexError:
            second = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        return first, second, torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()

    return _indices(f, rtol=1e-2)


def several_failures_in_a_call() -> Case:
    def f(table, index):
        out = []
        for k in (index, index + 1, index - 8):
            try:
                out.append(table[k])
            except IndexError as error:
                out.append(str(error))
        return out

    return _indices(f)


def statistics_and_random_numbers() -> Case:
    norm, table = nn.BatchNorm1d(2), nn.Embedding(4, 2)

    def step(x, index):
        return table(index) + F.dropout(norm(x), 0.5).sum()

    def f(x, index):
        try:
            return step(x, index)
        except IndexError:
            return norm.running_mean.clone(), torch.rand(2)

    return _indices(f, watch=[norm])


def cache_written_in_place() -> Case:
    cache, table = torch.zeros(4, 2), nn.Embedding(10, 2)

    def decode(token, position):
        hidden = table(token)
        cache.index_copy_(0, position, hidden)
        return (cache @ hidden.t()).softmax(0)

    def f(token, position):
        try:
            with torch.no_grad():
                return decode(token, position)
        except IndexError as error:
            return str(error)

    calls = [(1, 0), (2, 1), (20, 2), (3, 9), (4, 2)]
    return Case(f, [(torch.tensor([token]), torch.tensor([position])) for token, position in calls], watch=[cache])


def dictionaries_changed_before() -> Case:
    table: dict = {}

    def f(x, index):
        table["n"] = table.get("n", 0) + 1
        table["last"] = x * 2
        y = x[index]
        table["ok"] = table["n"]
        return y

    return _indices(f, watch=[table])
