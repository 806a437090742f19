"""Programs that stay for the next capture, and what names their compilations."""

from __future__ import annotations

import pytest
import torch
from harness import identity

from framesmith_autograd_compiler import Programs, capture, disabled, enable, programs
from framesmith_autograd_compiler import disable as end_enabled
from framesmith_guards import CompileContext


def weight_and_loss(size=3):
    weight = torch.nn.Parameter(torch.linspace(-1, 1, size))
    return weight, lambda: (weight.sin() * weight.exp()).sum()


class Compiler:
    """Runs graphs as they are; counts them, and notes which compilation each was for."""

    def __init__(self):
        self.ids = []

    def __call__(self, gm):
        self.ids.append(str(CompileContext.current_trace_id()))
        return gm


def step(weight, loss, where):
    with disabled():
        (expected,) = torch.autograd.grad(loss(), [weight])
    weight.grad = None
    with capture(where) as seen:
        loss().backward()
    torch.testing.assert_close(weight.grad, expected)
    return seen


def test_a_capture_goes_on_with_the_programs_of_the_last():
    compiler = Compiler()
    cache = Programs(compiler)
    weight, loss = weight_and_loss()
    seen = [step(weight, loss, cache) for _ in range(4)]
    assert len(compiler.ids) == 1
    assert [one.runs for one in seen] == [1] * 4 and not any(one.fallbacks for one in seen)
    assert len({id(program) for one in seen for program in one.programs}) == 1


def test_captures_with_compilers_start_empty():
    compiler = Compiler()
    weight, loss = weight_and_loss()
    for _ in range(3):
        step(weight, loss, compiler)
    assert len(compiler.ids) == 3


def test_two_caches_alternate():
    compilers = [Compiler(), Compiler()]
    both = [Programs(compiler) for compiler in compilers]
    weight, loss = weight_and_loss()
    for number in range(6):
        step(weight, loss, both[number % 2])
    assert [len(compiler.ids) for compiler in compilers] == [1, 1]


def test_nested_captures_have_their_own():
    inner, outer = Programs(Compiler()), Programs(Compiler())
    weight, loss = weight_and_loss()
    for _ in range(2):
        with capture(outer) as seen:
            step(weight, loss, inner)
            weight.grad = None
            loss().backward()
        assert seen.runs == 1
    assert len(inner.compiler_fn.ids) == len(outer.compiler_fn.ids) == 1


def test_enabled_goes_on_too():
    cache = Programs(Compiler())
    weight, loss = weight_and_loss()
    for _ in range(2):
        enable(cache)
        try:
            weight.grad = None
            loss().backward()
        finally:
            end_enabled()
    assert len(cache.compiler_fn.ids) == 1


def test_new_sizes_in_a_later_capture():
    cache = Programs(Compiler())
    for size in (3, 4, 5, 7, 2, 6):
        step(*weight_and_loss(size), cache)
    assert len(cache.compiler_fn.ids) == 3, "one for the first size, one more when sizes are inputs, and one for all"


def test_each_program_has_an_id_of_its_own():
    cache = Programs(Compiler())
    weight, loss = weight_and_loss()
    first = step(weight, loss, cache).programs[0]
    second = step(weight, lambda: weight.cos().sum(), cache).programs[0]
    assert first.compile_id != second.compile_id
    assert cache.compiler_fn.ids == [str(first.compile_id), str(second.compile_id)]
    assert str(first.compile_id).startswith("!")
    assert CompileContext.try_get() is None


def test_a_failure_is_reported_with_its_id():
    reports = []

    def fail(gm):
        raise ValueError("planted")

    cache = Programs(fail, lambda where, error: reports.append((where, str(CompileContext.current_trace_id()))))
    weight, loss = weight_and_loss()
    seen = [step(weight, loss, cache) for _ in range(3)]
    assert reports == [("a part of the backward pass", str(seen[0].programs[0].compile_id))], "once, whoever captures"


def test_a_failure_that_is_raised_is_raised_again():
    def fail(gm):
        raise ValueError("planted")

    def refuse(where, error):
        raise RuntimeError(where) from error

    cache = Programs(fail, refuse)
    weight, loss = weight_and_loss()
    for _ in range(3):
        with capture(cache), pytest.raises(RuntimeError, match="a part of the backward pass"):
            loss().backward()
        assert weight.grad is None


def test_the_least_recently_used_goes(monkeypatch):
    monkeypatch.setattr(programs, "CACHE_SIZE", 2)
    cache = Programs(Compiler())
    weight, loss = weight_and_loss()
    kinds = [loss, lambda: weight.cos().sum(), lambda: weight.tanh().sum()]
    made = []
    for kind in (0, 1, 0, 2, 0, 1):
        with capture(cache):  # another capture in between: the engine itself remembers what it has met
            weight.grad = None
            kinds[kind]().backward()
        with capture(identity):
            weight.grad = None
            loss().backward()
        made.append(len(cache.compiler_fn.ids))
    assert made == [1, 2, 2, 3, 3, 4]


def test_passes_within_one_of_the_engines_are_the_engines():
    weight, loss = weight_and_loss()
    other, of_other = weight_and_loss()

    def inner(grad):
        (found,) = torch.autograd.grad(of_other(), [other], create_graph=True)
        return grad + found.detach()

    handle = weight.register_hook(inner)
    with capture(identity) as seen, pytest.warns(UserWarning, match="create_graph=True") as caught:
        torch.autograd.grad(loss(), [weight], create_graph=True)
    handle.remove()
    assert len(caught) == len(seen.fallbacks) == 1 and seen.runs == 0
