"""Containers changed around what interrupts a trace: breaks, exceptions, graphs that raise, branches on data."""

import collections

import torch

from integration_tests.harness.differential import Case


class Stop(Exception):
    pass


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


def with_a_break_between() -> Case:
    log, table, ring = [], {"n": 0}, collections.deque(maxlen=2)

    def f(x):
        log.append("before")
        table["n"] += 1
        y = x * table["n"]
        print("break")
        ring.append(y)
        log[-1] += "!"
        z = y + len(log)
        print("again")
        table.clear()
        table["n"] = len(ring)
        return z * 2

    return Case(f, _xs(), watch=[log, table, ring])


def with_a_graph_that_raises_behind_a_break() -> Case:
    log: list = []

    def f(x, index):
        log.append("traced")
        y = x * 2
        print("break")
        log.append("behind it")
        z = y[index]
        log.append("after the graph")
        return z

    return Case(f, [(torch.ones(3), torch.tensor([i])) for i in (1, 7, 2, 9)], watch=[log])


def with_a_graph_that_raises_in_a_helper_behind_a_break() -> Case:
    log, table = [], {"n": 0}

    def look(x, index):
        table["n"] += 1
        log.append(table["n"])
        return x[index]

    def f(x, index):
        log.append("traced")
        print("break")
        try:
            y = look(x * 2, index)
        except IndexError as error:
            log.append(str(error))
            y = look(x, index * 0)
        return y, len(log)

    return Case(f, [(torch.ones(3), torch.tensor([i])) for i in (1, 7, 2, 9)], watch=[log, table])


def with_a_graph_that_raises_in_a_loop() -> Case:
    log: list = []

    def f(x, indices):
        for index in indices:
            log.append("step")
            print(len(log))
            try:
                x = x + x[index]
            except IndexError:
                log[-1] = "failed"
            finally:
                log.append("done")
        return x

    return Case(f, [(torch.ones(2), [torch.tensor([i]) for i in row]) for row in ((0, 1), (5, 1), (1, 5))], watch=[log])


def with_an_exception_that_goes_out() -> Case:
    log, seen = [], set()

    def f(x, fail):
        log.append(x * 2)
        seen.add(fail)
        if fail:
            raise Stop(len(log))
        log.clear()
        return x + len(seen)

    return Case(f, [(torch.ones(2), flag) for flag in (False, True, True, False)], watch=[log, seen])


def with_an_exception_caught() -> Case:
    stack: list = []

    def push(item):
        stack.append(item)
        if len(stack) % 2:
            raise Stop(item)
        return item

    def f(x):
        try:
            y = push(x * 2)
        except Stop as stop:
            stack.append("caught")
            y = stop.args[0] + 1
        else:
            stack.append("fine")
        finally:
            stack.insert(0, "finally")
        return y + len(stack)

    return Case(f, _xs(), watch=[stack])


def with_data_that_decide() -> Case:
    log: list = []

    def f(x):
        log.append("start")
        if x.sum() > 0:
            log.append(x * 2)
        else:
            log.pop()
        log.append(len(log))
        return x * len(log)

    return Case(f, [(torch.ones(2),), (-torch.ones(2),), (torch.ones(2),)], watch=[log])
