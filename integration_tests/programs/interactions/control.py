"""Results acted on, breaks inside blocks, generators across them, restarts and errors at unusual points."""

import contextlib
import functools
import threading
import weakref

import torch

from integration_tests.harness.differential import Case


def _xs(*others, n=3):
    return [(torch.arange(1.0, 4.0) + i, *others) for i in range(n)]


class Block:
    """Notes how it is left, and swallows the errors that it is given."""

    def __init__(self, log, swallow=()):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(kind.__name__ if kind else "out")
        return kind is not None and issubclass(kind, self.swallow)


def a_break_inside_three_blocks() -> Case:
    log = []

    def f(x, n):
        with Block(log) as outer:
            outer.n = n
            with Block(log, (ValueError,)), torch.no_grad():
                y = x * n
                print("break", torch.is_grad_enabled())
                y = y + outer.n
                if y.sum() > 10:
                    raise ValueError
                log.append("stayed")
            y = y * 2
        return y, torch.is_grad_enabled()

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[log])


def a_block_that_returns_and_swallows() -> Case:
    log = []

    def f(x, n):
        for i in range(3):
            with Block(log, (KeyError,)):
                y = x * i
                if i == n:
                    raise KeyError(i)
                if float(y.sum()) > 5:
                    return y, "returned"
                continue
            log.append(i)
        return x, "fell through"

    return Case(f, [(torch.ones(3), n) for n in (0, 2, 5)], watch=[log])


def finally_that_breaks() -> Case:
    log = []

    def f(x, n):
        try:
            y = x / n
            if y.sum() > 2:
                raise ValueError(n)
            return y
        except ValueError as error:
            log.append(error.args)
            raise RuntimeError("again") from error
        finally:
            print("finally", len(log))
            log.append(float(x.sum()))

    return Case(f, [(torch.ones(3), n) for n in (1, 2, 3)], watch=[log])


def a_generator_across_a_break_with_sends() -> Case:
    log = []

    def average():
        total, n, mean = 0, 0, None
        try:
            while True:
                value = yield mean
                total, n = total + value, n + 1
                mean = total / n
        finally:
            log.append(n)

    def f(x):
        means = average()
        next(means)
        y = means.send(x)
        print("break")
        z = means.send(x * 3)
        if z.sum() > 12:
            return y, z
        means.close()
        return z

    return Case(f, _xs(), watch=[log])


def results_decide_which_hook_runs() -> Case:
    log = []

    def f(x, actions):
        y = x.cumsum(0)
        index = int(y[-1]) % len(actions)
        z = actions[index](y)
        actions.append(actions.pop(0))
        if torch.equal(z, y):
            log.append("same")
        elif not z.any():
            log.append("nothing")
        return z.tolist(), y.argmax().item(), bool((z > y).all())

    return Case(f, _xs([torch.sin, lambda y: y, torch.zeros_like]), watch=[log])


def an_error_passes_two_inlined_frames() -> Case:
    log = []

    def inner(x, n):
        try:
            log.append("inner")
            return x[n]
        finally:
            log.append("left inner")

    def outer(x, n):
        with contextlib.suppress(KeyError):
            return inner(x, n)

    def f(x, n):
        try:
            return outer(x, n)
        except (IndexError, RuntimeError, TypeError) as error:
            log.append(type(error).__name__)
            return x * 2

    return Case(f, [(torch.ones(3), n) for n in (1, 9, "a")], watch=[log])


def a_weak_reference_made_inside() -> Case:
    class Node:
        pass

    refs = []

    def f(x):
        node = Node()
        node.t = x * 2
        ref = weakref.ref(node)
        y = ref().t + 1
        refs.append(ref)
        print("alive", ref() is node)
        return y, ref().t is node.t, sum(ref() is None for ref in refs)

    return Case(f, _xs())


def a_weak_table_read_and_filled() -> Case:
    class Key:
        pass

    keys = [Key(), Key()]
    table = weakref.WeakKeyDictionary({keys[0]: 2.0})

    def f(x, n):
        y = x * table.get(keys[n], 1.0)
        table[keys[n]] = float(n + 1)
        return y + len(table), table[keys[n]]

    return Case(f, [(torch.ones(2), n) for n in (0, 1, 1)])


def finalizers_run_once() -> Case:
    log = []

    class Resource:
        def __init__(self, t):
            self.t = t

        def __del__(self):
            log.append("gone")

    def used(x):
        resource = Resource(x * 2)
        return resource.t + 1

    def f(x):
        return used(used(x))

    return Case(f, _xs(), watch=[log])


def partials_closures_and_class_attributes() -> Case:
    class Settings:
        scale = 2.0
        items = []

    def scaled(x, *, by):
        Settings.items.append(by)
        return x * by * Settings.scale

    twice = functools.partial(scaled, by=2)
    twice.note = []

    def f(x, fn):
        y = fn(x)
        fn.note.append(len(Settings.items))
        z = functools.partial(fn, by=3)(y)
        print(Settings.scale)
        Settings.scale += 1
        return z, fn(y), fn.keywords

    return Case(f, _xs(twice), watch=[twice.note, lambda: (Settings.scale, Settings.items)])


def threads_that_compute() -> Case:
    def f(x):
        results = {}

        def work(n):
            results[n] = (x * n).sin().sum()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[n] for n in range(3)]

    return Case(f, _xs())


def thread_locals_and_locks() -> Case:
    local, lock = threading.local(), threading.RLock()
    local.n = 1

    def f(x):
        with lock:
            local.n += 1
            y = x * local.n
            with lock:
                print("held")
                y = y + 1
        return y, local.n

    return Case(f, _xs())


def recursion_with_breaks() -> Case:
    log = []

    def down(x, n):
        if n == 0:
            print("bottom")
            return x
        log.append(n)
        y = down(x * 2, n - 1)
        log.append(-n)
        return y + n

    def f(x, n):
        return down(x, n)

    return Case(f, [(torch.ones(2), n) for n in (2, 3, 2)], watch=[log])


def a_function_that_changes_itself() -> Case:
    def step(x, scale=1.0, *, shift=0.0):
        return x * scale + shift

    def f(x, n):
        y = step(x)
        step.__defaults__ = (float(n),)
        step.__kwdefaults__ = {"shift": float(n)}
        step.calls = getattr(step, "calls", 0) + 1
        print("break")
        return y, step(x), step.calls

    return Case(f, [(torch.ones(2), n) for n in (2, 3, 2)])


def code_replaced_between_calls() -> Case:
    def one(x):
        return x + 1

    def two(x):
        return x * 5

    def step(x):
        return x - 1

    def f(x):
        return step(x).sin()

    def to(code):
        return lambda: setattr(step, "__code__", code.__code__)

    return Case(f, _xs(), before=[lambda: None, to(one), to(two)])


def nested_functions_share_cells() -> Case:
    def f(x, n):
        count = 0
        log = []

        def up(k):
            nonlocal count
            count += k
            log.append(count)
            return x * count

        def both():
            return up(1) + up(n)

        y = both()
        print("count", count)
        z = both()
        return y, z, count, log, up

    return Case(lambda x, n: f(x, n)[:-1], [(torch.ones(2), n) for n in (1, 2, 3)])


def match_on_what_a_graph_made() -> Case:
    def f(x, item):
        match item:
            case {"kind": "scale", "by": float(by), **rest}:
                y = x * by + len(rest)
            case [torch.Tensor() as t, *others] if t.sum() > 1:
                y = x + t + len(others)
            case (n, m):
                y = x - n - m
            case _:
                y = None
        return y

    items = [{"kind": "scale", "by": 2.0, "z": 1}, [torch.ones(2), 1, 2], (1, 2), [torch.zeros(2), 4], 5]
    return Case(f, [(torch.ones(2), item) for item in items])


def exception_groups_and_notes() -> Case:
    log = []

    def f(x, n):
        try:
            y = x * n
            if n == 1:
                raise ExceptionGroup("many", [ValueError("v"), KeyError("k")])
            if n == 2:
                error = ValueError("noted")
                error.add_note(f"n is {n}")
                raise error
            return y
        except* ValueError as group:
            log.append([type(e).__name__ for e in group.exceptions])
            log.append(getattr(group.exceptions[0], "__notes__", None))
        except* KeyError:
            log.append("key")
        return x

    return Case(f, [(torch.ones(2), n) for n in (0, 1, 2)], watch=[log])


def context_from_a_generator_that_catches() -> Case:
    log = []

    @contextlib.contextmanager
    def guarded(name):
        log.append(name)
        try:
            yield name * 2
        except ZeroDivisionError:
            log.append("caught")
        finally:
            log.append("left")

    def f(x, n):
        y = x
        with guarded("a") as name:
            y = x * (6 // n)
            print(name)
        with contextlib.ExitStack() as stack:
            for k in "bc":
                stack.enter_context(guarded(k))
            stack.callback(log.append, "callback")
            y = y + len(log)
        return y, name

    return Case(f, [(torch.ones(2), n) for n in (1, 0, 2)], watch=[log])


def asked_by_len_bool_and_contains() -> Case:
    class Odd:
        def __init__(self, items):
            self.items, self.asked = items, []

        def __len__(self):
            self.asked.append("len")
            return len(self.items)

        def __contains__(self, item):
            self.asked.append("in")
            print("in")
            return item in self.items

        def __iter__(self):
            self.asked.append("iter")
            yield from self.items

    odd = Odd([1, 2])

    def f(x, k):
        y = x * 2 if odd else x
        if k in odd:
            y = y + sum(odd)
            odd.items.append(k + 10)
        first, *_ = odd
        return y - first, len(odd)

    return Case(f, [(torch.ones(2), k) for k in (1, 5, 11)], watch=[odd])


def comparisons_that_have_effects() -> Case:
    class Version:
        compared = 0

        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            Version.compared += 1
            return self.n == other.n

        def __lt__(self, other):
            self.asked = True
            return self.n < other.n

        __hash__ = object.__hash__

    versions = [Version(n) for n in (3, 1, 2)]

    def f(x, n):
        y = x * min(versions).n
        if Version(n) in versions:
            y = y + versions.index(Version(n))
        versions.sort()
        return y, [v.n for v in versions], sorted(vars(v) for v in ()) or Version.compared

    return Case(f, [(torch.ones(2), n) for n in (1, 2, 7)], watch=[versions])
