"""Errors that only real data shows, and what the program does about them."""

import torch
import torch.nn.functional as F
from torch import nn

from integration_tests.harness.differential import Case

GOOD, BAD = torch.tensor([1]), torch.tensor([9])


def _both(f, table=(4, 2), n: int = 3) -> Case:
    return Case(f, [(torch.randn(table), index) for index in [GOOD, BAD, GOOD][:n]])


def caught_with_effects_around() -> Case:
    log: list = []

    def f(table: torch.Tensor, index: torch.Tensor):
        log.append("before")
        try:
            y = F.embedding(index, table)
            log.append("found")
        except IndexError as error:
            log.append(str(error))
            y = table * 2
        else:
            log.append("else")
        finally:
            log.append("finally")
        return y + len(log[-1])

    case = _both(f)
    case.watch = [log]
    return case


def uncaught_with_effects_before() -> Case:
    log: list = []
    buffer = torch.zeros(2)

    def f(table: torch.Tensor, index: torch.Tensor):
        log.append(1)
        buffer.add_(1)
        y = table[index] + torch.rand(2)
        log.append(2)
        buffer.mul_(2)
        return y

    case = _both(f)
    case.watch = [log, buffer]
    return case


def raised_in_a_module() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 3)
            self.norm = nn.BatchNorm1d(3)
            self.head = nn.Linear(3, 2)
            self.calls = 0
            self.failures = 0

        def forward(self, index, target):
            self.calls += 1
            x = self.norm(self.table(index))
            try:
                return F.cross_entropy(self.head(x), target)
            except IndexError:
                self.failures += 1
                return x.sum()

    model = Model()
    good = (torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
    bad_target = (torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7]))
    bad_index = (torch.tensor([0, 1, 9]), torch.tensor([0, 1, 1]))
    return Case(model, [good, bad_target, bad_index, good], watch=[model])


def training_step_with_a_bad_batch() -> Case:
    layer = nn.Linear(3, 4)

    def f(x: torch.Tensor, target: torch.Tensor):
        try:
            return F.cross_entropy(F.dropout(layer(x)), target)
        except IndexError:
            return (layer(x) ** 2).mean()

    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    x = torch.randn(2, 3)
    return Case(f, [(x, good), (x, bad), (x, good)], watch=[layer], backward=True)


def linear_algebra() -> Case:
    def f(a: torch.Tensor):
        out = []
        for solve in (torch.linalg.inv, torch.linalg.cholesky, lambda m: torch.linalg.solve(m, m)):
            try:
                out.append(solve(a))
            except RuntimeError as error:
                out.append((type(error).__name__, str(error)))
        return out

    return Case(f, [(torch.eye(3) * 2,), (torch.zeros(3, 3),), (-torch.eye(3),)], rtol=1e-4)


def probabilities() -> Case:
    def f(p: torch.Tensor):
        try:
            a = torch.bernoulli(p)
        except RuntimeError as error:
            return str(error)[:40]
        return a, F.binary_cross_entropy(p, a), torch.multinomial(p, 1)

    return Case(f, [(torch.tensor([0.5, 0.5]),), (torch.tensor([2.0, 0.5]),), (torch.tensor([0.1, 0.5]),)])


def division_by_zero() -> Case:
    def f(a: torch.Tensor, b: torch.Tensor):
        try:
            c = a // b
        except RuntimeError:
            c = a
        try:
            return c, a % b
        except RuntimeError:
            return c, b

    a = torch.tensor([4, 7])
    return Case(f, [(a, torch.tensor([2, 2])), (a, torch.tensor([2, 0])), (a, torch.tensor([0, 0]))])


def assertion() -> Case:
    def f(x: torch.Tensor):
        y = x * 2
        torch._assert_async((y > 0).all())
        return y + 1

    return Case(f, [(torch.ones(2),), (-torch.ones(2),), (torch.ones(2),)])


def result_unused() -> Case:
    def f(table: torch.Tensor, index: torch.Tensor):
        try:
            table[index]
            F.embedding(index, table).zero_()
            torch.zeros_like(table.index_select(0, index))
        except IndexError:
            return table - 1
        return table + 1

    return _both(f)


def manager_swallows() -> Case:
    class Swallow:
        def __init__(self):
            self.seen: list = []

        def __enter__(self):
            self.seen.append("enter")
            return self

        def __exit__(self, kind, value, trace):
            self.seen.append(None if kind is None else kind.__name__)
            return kind is IndexError

    manager = Swallow()

    def f(table: torch.Tensor, index: torch.Tensor):
        y = table.sum()
        with manager:
            y = table[index].sum()
            manager.seen.append("body")
        return y

    case = _both(f)
    case.watch = [manager]
    return case


def caught_by_a_caller_inside() -> Case:
    def lookup(table, index, log):
        log.append("lookup")
        try:
            return table[index]
        finally:
            log.append("left")

    def f(table: torch.Tensor, index: torch.Tensor):
        log: list = []
        try:
            return lookup(table, index, log), log
        except IndexError as error:
            raise ValueError("bad index") from error

    return _both(f)


def retry_in_a_loop() -> Case:
    def f(table: torch.Tensor, start: int):
        tries = []
        for index in range(start, -1, -1):
            try:
                tries.append(index)
                return table[torch.tensor([index])], tries
            except IndexError:
                continue
        return None, tries

    return Case(f, [(torch.randn(4, 2), 5), (torch.randn(4, 2), 2)])


def overlapping_memory() -> Case:
    def f(u: torch.Tensor):
        try:
            u += u[0]
        except RuntimeError:
            return u * 2, "refused"
        return u, "done"

    def views(u: torch.Tensor):
        results = []
        for write in (lambda: u[1:].copy_(u[:-1]), lambda: u[:1].expand(3, 3).add_(1), lambda: u.add_(u.t())):
            try:
                write()
                results.append(True)
            except RuntimeError:
                results.append(False)
        return results, f(u)

    return Case(views, [(torch.arange(9.0).view(3, 3),)] * 2)


def numbers_out_of_range() -> Case:
    def f(x: torch.Tensor):
        results: list = []
        for make in (
            lambda: x.to(torch.int8).fill_(300),
            lambda: x.half().masked_fill(x > 0, -1e9),
            lambda: x.half().masked_fill(x > 0, float("-inf")),
            lambda: torch.full((300,), 300, dtype=torch.int16),
            lambda: x.to(torch.uint8).clamp(min=-1),
            lambda: torch.where(x > 0, x.to(torch.int8), 300),
        ):
            try:
                results.append(make())
            except RuntimeError as error:
                results.append(str(error))
        return results

    return Case(f, [(torch.tensor([1.0, -1.0]),)] * 2)


def after_a_break() -> Case:
    log: list = []

    def f(table: torch.Tensor, index: torch.Tensor):
        log.append("start")
        y = table * 2
        print("between", len(log))
        log.append("middle")
        try:
            y = y[index]
        except IndexError:
            log.append("caught")
        return y

    case = _both(f)
    case.watch = [log]
    return case


def gradients_of_what_ran_before() -> Case:
    def f(table: torch.Tensor, index: torch.Tensor):
        hidden = (table * 3).relu()
        try:
            hidden = hidden[index]
        except IndexError:
            hidden = hidden * 0.5
        return hidden

    return Case(f, [(torch.randn(4, 2, requires_grad=True), index) for index in (GOOD, BAD, GOOD)], backward=True)
