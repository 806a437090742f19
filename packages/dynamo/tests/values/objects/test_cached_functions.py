"""Users' functions with `functools.lru_cache`: results of calls, and the cache afterwards, as in eager mode."""

import functools

import pytest
import torch
from driver import compiled, same
from torch import nn

import framesmith_frames as frames

X = torch.arange(4.0)
AMOUNT = 1


class Recipe:
    def __init__(self, n):
        self.n, self.parts, self.by_name = n, [n, n + 1], {"n": n}

    def total(self):
        return self.n + sum(self.parts) + self.by_name["n"]


def scenario(make, calls=4, between=None, inputs=(X,)):
    """Return (results, count of the cache afterwards, its contents) of a new function for each way of running it."""

    def run(compile):
        global AMOUNT
        AMOUNT = 1
        function, *caches = make()
        subject, results = compile(function), []
        for call in range(calls):
            results.append(subject(*(x[call % 2 :] if x.dim() else x for x in inputs)))
            if between is not None:
                between(call, *caches)
        return results, [cache.cache_info() for cache in caches], [cache(1) for cache in caches]

    return run


def cached(size=None, typed=False):
    return functools.lru_cache(size, typed)


def double(size=None, typed=False):
    @cached(size, typed)
    def double(n, by=2):
        return n * by

    return double


def plain():
    f = double()
    return (lambda x: x * f(3) + f(3) + f(1, by=5)), f


def typed():
    f = double(8, typed=True)
    return (lambda x: x * f(3) + f(3.0) + f(n=3) + f(True)), f


def not_kept():
    f = double(0)
    return (lambda x: x * f(3) + f(3)), f


def evicted():
    f = double(2)
    return (lambda x: x * f(1) + f(2)), f


def evicted_inside():
    f = double(2)
    return (lambda x: x * f(1) + f(2) + f(3) + f(1)), f


def recursive():
    @cached()
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    return (lambda x: x * fibonacci(15)), fibonacci


def raising():
    @cached()
    def refuse(n):
        if n > 1:
            raise ValueError(n)
        return n

    def f(x):
        try:
            refuse(5)
        except ValueError as error:
            return x + error.args[0]

    return f, refuse


def unhashable():
    f = double()

    def g(x):
        try:
            f([x])
        except TypeError as error:
            return x + f(2), str(error)

    return g, f


def of_a_global():
    @cached()
    def add(n):
        return n + AMOUNT

    return (lambda x: x * add(1)), add


def of_a_global_set_inside():
    @cached()
    def add(n):
        return n + AMOUNT

    def f(x):
        global AMOUNT
        first, AMOUNT = add(2), 7
        return x * first + add(2) + add(3)

    return f, add


def of_a_size():
    f = double(16)
    return (lambda x: x * f(x.shape[0]) + f(x.shape[0] + 1)), f


def a_list():
    @cached()
    def pair(n):
        return [n, n + 1]

    return (lambda x: x * pair(2)[0] + pair(1)[1]), pair


def an_object():
    @cached()
    def recipe(n):
        return Recipe(n)

    @cached(16)
    def cook(what, shape=(1,)):
        return [what.n if isinstance(what, Recipe) else what, *shape], len(shape)

    def f(x):
        sizes, count = cook(recipe(2), tuple(x.shape))
        return x * recipe(2).total() + sum(sizes) + count

    return f, recipe, cook


def a_list_returned():
    @cached()
    def pair(n):
        return [n, n + 1]

    return (lambda x: (pair(2), x + pair(2)[0], pair(2) is pair(2))), pair


def a_list_changed():
    @cached()
    def pair(n):
        return [n, n + 1]

    def f(x):
        pair(2).append(0)
        return x * len(pair(2))

    return f, pair


def a_list_over_a_break():
    @cached()
    def pair(n):
        return [n, n + 1]

    def f(x):
        found = pair(2)
        x = x * found[0]
        print(end="")
        return x + found[1] + pair(2)[0]

    return f, pair


def a_tensor():
    @cached()
    def steps(n):
        return torch.arange(n)

    return (lambda x: x[:, None] + steps(3)), steps


def an_effect():
    seen = []

    @cached()
    def note(n):
        seen.append(n)
        return n

    return (lambda x: (x + note(2) + note(3), list(seen))), note


def a_key_that_is_a_tensor():
    @cached()
    def size(x):
        return x.shape[0] if isinstance(x, torch.Tensor) else x

    return (lambda x: x * size(x)), size


def a_method():
    class Module(nn.Module):
        @cached()
        def size(self, n=2):
            return 3 * n

        def forward(self, x):
            return x * self.size(2) + self.size(n=4)

    module = Module()
    return (lambda x: module(x)), Module.size


def a_function_and_a_type():
    @cached()
    def limit(what, convert=abs):
        return convert(-2) + (torch.finfo(what).eps if isinstance(what, torch.dtype) else what)

    return (lambda x: x * limit(x.dtype) + limit(1, convert=abs)), limit


def clear(call, *caches):
    for cache in caches:
        cache.cache_clear()


def clear_at_last(call, *caches):
    if call == 2:
        clear(call, *caches)


def change_the_global(call, *caches):
    global AMOUNT
    AMOUNT = call
    clear_at_last(call, *caches)


def change_what_is_held(call, pair):
    pair(2)[0] = 10 + call


#: Programs that do not break the graph, and programs that do, the first time.
WHOLE = [
    plain, typed, not_kept, evicted, recursive, raising, unhashable, of_a_global, of_a_global_set_inside, of_a_size,
    a_list, an_object, a_method, a_function_and_a_type,
]  # fmt: skip
BROKEN = [
    evicted_inside,
    a_list_returned,
    a_list_changed,
    a_list_over_a_break,
    a_tensor,
    an_effect,
    a_key_that_is_a_tensor,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("between", [None, clear, clear_at_last, change_the_global])
@pytest.mark.parametrize("make", [*WHOLE, *BROKEN])
def test_results_and_counts(make, between):
    frames.reset()
    subjects = []

    def run(function):
        subjects.append(compiled(function))
        return subjects[-1]

    program = scenario(make, between=between)
    assert same(program(run), program(lambda function: function))
    assert bool(subjects[0].of_kind("break")) is (make in BROKEN)


@pytest.mark.parametrize("make", [a_list, a_list_returned, a_list_over_a_break])
def test_objects_changed_by_others(make):
    frames.reset()
    program = scenario(make, between=change_what_is_held)
    assert same(program(compiled), program(lambda function: function))


def test_what_is_returned_is_the_object_in_the_cache():
    frames.reset()
    function, pair = a_list_returned()
    fn = compiled(function)
    found = [fn(X)[0] for _ in range(3)]
    assert all(each is pair(2) for each in found)


@pytest.mark.parametrize("make", [plain, a_list, an_object])
def test_one_entry_serves_before_and_after(make):
    frames.reset()
    function, *caches = make()
    fn = compiled(function)
    for _ in range(3):
        fn(X)
    clear(0, *caches)
    fn(X)
    assert len(fn.of_kind("entry")) == 1


def test_a_result_that_is_there_is_read():
    frames.reset()
    function, steps = a_tensor()
    steps(3)
    fn = compiled(function)
    assert same(fn(X), function(X)) and not fn.of_kind("break")
    steps(3).add_(1)
    assert same(fn(X), X[:, None] + torch.arange(1, 4)) and len(fn.of_kind("entry")) == 1
    assert steps.cache_info()[:2] == (4, 1)


def test_dynamic_sizes():
    frames.reset()
    function, f = of_a_size()
    fn = compiled(function)
    for n in range(3, 12):
        assert same(fn(torch.ones(n)), torch.ones(n) * 2 * n + 2 * (n + 1))
    assert len(fn.of_kind("entry")) == 2
    assert f.cache_info()[:2] == (8, 10)


def a_tensor_of_a_size():
    mask = cached()(lambda n: torch.ones(n).cumsum(0))
    return (lambda x: x * mask(x.shape[0]) + mask(x.shape[0] + 1)[:-1]), mask


def an_object_returned_of_a_size():
    pair = cached()(lambda n: [n, n])
    return (lambda x: (x + 1, pair(x.shape[0]))), pair


def an_effect_of_a_size():
    class Module(nn.Module):
        calls = 0

        @cached(4)
        def size(self, n=2):
            self.calls += 1
            return n + self.calls

        def forward(self, x):
            return x * self.size(x.shape[0]), self.calls

    module = Module()
    return (lambda x: module(x)), Module.size


def a_print_of_a_size():
    @cached()
    def speak(n):
        print(n)
        return n

    return (lambda x: (x + 1) * speak(x.shape[0])), speak


@pytest.mark.parametrize(
    "make",
    [a_tensor_of_a_size, an_object_returned_of_a_size, an_effect_of_a_size, a_print_of_a_size],
)
def test_bodies_that_break_by_sizes_that_the_cache_holds(make, capsys):
    def run(compile):
        function, f = make()
        subject = compile(function)
        results = [subject(torch.ones(n)) for n in (4, 4, 3, 5, 3, 4, 6, 5, 6, 7)]
        return results, f.cache_info(), capsys.readouterr().out

    frames.reset()
    subjects = []

    def noted(function):
        subjects.append(compiled(function))
        return subjects[-1]

    assert same(run(noted), run(lambda function: function))
    assert not subjects[0].of_kind("error")


def test_bodies_that_raise_where_the_cache_holds_a_result():
    def run(compile):
        refuses = False

        @cached(4)
        def first(n):
            if refuses:
                raise ValueError(n)
            return n + 1

        def function(x):
            try:
                return x * first(x.shape[0])
            except ValueError as error:
                return x - 1, str(error)

        subject, results = compile(function), []
        for call, n in enumerate((2, 3, 4, 2, 5, 3, 2)):
            refuses = call > 1
            results.append(subject(torch.ones(n)))
        return results, first.cache_info()

    frames.reset()
    subjects = []

    def noted(function):
        subjects.append(compiled(function))
        return subjects[-1]

    assert same(run(noted), run(lambda function: function))
    assert not subjects[0].of_kind("error")


def test_a_cache_that_is_filled_while_a_call_of_it_is_compiled():
    steps = cached()(lambda n: torch.ones(n))
    backends = []

    def backend(module, inputs):
        backends.append(steps(4))  # as another thread would that runs the function eagerly meanwhile
        return module.forward

    frames.reset()
    fn = compiled(lambda x: (x + 1) * steps(x.shape[0]))
    fn.converter.compile_graph = backend
    assert same(fn(X), X + 1) and not fn.of_kind("error") and len(backends) > 1
