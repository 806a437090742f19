"""Programs whose compiled functions run eagerly, each for a reason of its own: `name -> (program, the reason)`.

A program takes `compile` and calls what it gives. Without `fullgraph` the results are eager's.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import framesmith
import framesmith_frames
from framesmith_dynamo.values.base import Args, Kwargs, Tracer, Value
from framesmith_dynamo.values.callables import handles

Program = Callable[[Callable[..., Any]], Any]
PROGRAMS: dict[str, tuple[Program, str]] = {}

X = torch.linspace(-1, 1, 6).reshape(3, 2)


def program(reason: str) -> Callable[[Program], Program]:
    def add(fn: Program) -> Program:
        PROGRAMS[fn.__name__] = (fn, reason)
        return fn

    return add


def fresh() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function with code of its own, of which nothing is known yet."""

    def smooth(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    smooth.__code__ = smooth.__code__.replace()
    return smooth


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


# What surrounds the call


class SeenFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class SeenOperations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def within_dual_level(run: Callable[..., Any]) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(run(forward_ad.make_dual(X, X))).tangent


def within(context: Callable[[], Any]) -> Callable[[Callable[..., Any]], Any]:
    def call(run: Callable[..., Any]) -> Any:
        with context():
            return run(X)

    return call


def checkpointed(run: Callable[..., Any]) -> Any:
    x = X.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False).sum().backward()
    return x.grad


TRANSFORM, CHECKPOINT, DUAL = "a torch.func transform is running", "an eager checkpoint is running", "forward-mode"
DISPATCH, FUNCTIONS, JIT = "a torch dispatch mode is active", "a torch function mode is active", "torch.jit.trace"

#: name -> (how it is called, why it runs eagerly then)
AROUND: dict[str, tuple[Callable[[Callable[..., Any]], Any], str]] = {
    "vmap": (lambda run: torch.vmap(run)(X), TRANSFORM),
    "vmap of vmap": (lambda run: torch.vmap(torch.vmap(run))(X.reshape(1, 3, 2)), TRANSFORM),
    "func.grad": (lambda run: torch.func.grad(lambda x: run(x).sum())(X), TRANSFORM),
    "func.vjp": (lambda run: torch.func.vjp(run, X)[0], TRANSFORM),
    "func.jvp": (lambda run: torch.func.jvp(run, (X,), (X,))[1], TRANSFORM),
    "func.jacrev": (lambda run: torch.func.jacrev(run)(X), TRANSFORM),
    "func.hessian": (lambda run: torch.func.hessian(lambda x: run(x).sum())(X), TRANSFORM),
    "func.functionalize": (lambda run: torch.func.functionalize(run)(X), TRANSFORM),
    "checkpoint": (checkpointed, CHECKPOINT),
    "dual level": (within_dual_level, DUAL),
    "dispatch mode": (within(SeenOperations), DISPATCH),
    "flop counter": (within(lambda: FlopCounterMode(display=False)), DISPATCH),
    "make_fx": (lambda run: make_fx(run)(X)(X), DISPATCH),
    "function mode": (within(SeenFunctions), FUNCTIONS),
    "jit.trace": (lambda run: torch.jit.trace(run, X)(X), JIT),
}


def around_function(name: str) -> Program:
    return lambda compile: AROUND[name][0](compile(fresh()))


def around_module(name: str) -> Program:
    def run(compile: Callable[..., Any]) -> Any:
        compiled = compile(Net())
        return AROUND[name][0](lambda x: compiled(x))

    return run


for _name, (_, _reason) in AROUND.items():
    PROGRAMS[f"{_name}: function"] = (around_function(_name), _reason)
    PROGRAMS[f"{_name}: module"] = (around_module(_name), _reason)


@program(TRANSFORM)
def warm_within_vmap(compile: Callable[..., Any]) -> Any:
    compiled = compile(fresh())
    return compiled(X), torch.vmap(compiled)(X)


@program("a __torch_dispatch__ is running")
def within_a_dispatch_handler(compile: Callable[..., Any]) -> Any:
    compiled = compile(fresh())

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return compiled(X)

    return torch.Tensor._make_subclass(Wrapped, X).exp()


@program("calls are left up to Python's recursion limit")
def deep_in_a_recursion(compile: Callable[..., Any]) -> Any:
    compiled = compile(fresh())

    def down(depth: int) -> Any:
        return down(depth - 1) if depth else compiled(X)

    deep, frame = 0, sys._getframe()
    while frame is not None:
        deep, frame = deep + 1, frame.f_back
    return down(sys.getrecursionlimit() - deep - 60)


@program("called while a call is being traced or compiled")
def from_a_backend(compile: Callable[..., Any]) -> Any:
    compiled, found = compile(fresh()), []

    def backend(gm: Any, inputs: Any) -> Any:
        found.append(compiled(X))
        return gm.forward

    framesmith.compile(fresh(), backend=backend, strict=True)(X)
    return found


@program("called by a trace function")
def from_a_trace_function(compile: Callable[..., Any]) -> Any:
    compiled, found = compile(fresh()), []
    errors: list[Exception] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and not found and not errors:
            try:
                found.append(compiled(X))
            except Exception as error:
                errors.append(error)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fresh()(X)
    finally:
        sys.settrace(before)
    if errors:
        raise errors[0]
    return found


@program("another thread")
def while_another_thread_compiles(compile: Callable[..., Any]) -> Any:
    """With `fullgraph` it waits; that ends as the other thread's compilation does, here in an error."""
    target, begun, go_on = fresh(), threading.Event(), threading.Event()
    failed: list[Exception] = []

    def backend(gm: Any, inputs: Any) -> Any:
        begun.set()
        go_on.wait(5)
        raise RuntimeError("planted by another thread")

    compiled = compile(target, backend=backend)

    def first() -> None:
        try:
            compiled(X)
        except Exception as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the planted failure
        thread = threading.Thread(target=first)
        thread.start()
        begun.wait(5)
        threading.Timer(0.1, go_on.set).start()
        try:
            return compiled(X)
        finally:
            thread.join()


# What is compiled, or cannot be


def own_frame(x: torch.Tensor) -> torch.Tensor:
    return x + len(sys._getframe().f_code.co_name)


def generate(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x + 1


def scripted(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) + 1


async def wait_for(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Generating(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        yield x + 1


class Handled:
    @classmethod
    def __torch_function__(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def with_global_generator(compile: Callable[..., Any]) -> Any:
    coroutine = compile(wait_for)(X)
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value


#: name -> (what is compiled, why it runs eagerly)
TARGETS: dict[str, tuple[Callable[[], Any], str]] = {
    "own frame": (lambda: own_frame, "_getframe"),
    "a handler of functions": (lambda: Handled.__torch_function__, "given another function at each call|breaks"),
    "disabled": (lambda: framesmith.disable(fresh()), "disable"),
    "disabled alone": (lambda: framesmith.disable(fresh(), recursive=False), "disable"),
    "a builtin that prints": (lambda: lambda x: print(end="") or x + 1, "prints|print"),
    "numpy": (lambda: lambda x: torch.from_numpy(np.sin(x.numpy())), "breaks"),
    "torch.jit.script": (lambda: torch.jit.script(scripted), "TorchScript has compiled it"),
    "a transform": (lambda: torch.func.jacrev(lambda x: x.sin()), "never inlined|breaks"),
    "a branch on data": (lambda: lambda x: x + 1 if x.sum() > 0 else x - 1, "a branch depends on a tensor's data"),
    "item": (lambda: lambda x: x + [10, 20, 30][int(x.argmax()) % 3], "breaks"),
}


def of_target(name: str) -> Program:
    return lambda compile: compile(TARGETS[name][0]())(X)


for _name, (_, _reason) in TARGETS.items():
    PROGRAMS[f"target: {_name}"] = (of_target(_name), _reason)

PROGRAMS["target: coroutine"] = (with_global_generator, "it is a coroutine function")


@program("it is a generator function")
def generator(compile: Callable[..., Any]) -> Any:
    return list(compile(generate)(X))


@program("it is a generator function")
def partial_of_a_generator(compile: Callable[..., Any]) -> Any:
    return list(compile(functools.partial(generate, X))())


@program("breaks")
def generating_module(compile: Callable[..., Any]) -> Any:
    return list(compile(Generating())(X))


@program("not for compiling")
def marked_in_between(compile: Callable[..., Any]) -> Any:
    target = fresh()
    compiled = compile(target)
    first = compiled(X)
    framesmith_frames.skip(target, "not for compiling")
    return first, compiled(X)


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(end="")
    return y + 1


class Breaking(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return breaking(super().forward(x))


@program("the graph breaks")
def inside_another_that_breaks(compile: Callable[..., Any]) -> Any:
    inner = compile(breaking)
    return framesmith.compile(lambda x: inner(x.cos()) * 2)(X)


@program("the graph breaks")
def after_a_break_of_another(compile: Callable[..., Any]) -> Any:
    inner = compile(breaking)

    def outer(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return inner(x) * 2

    return framesmith.compile(outer)(X)


@program("the graph breaks")
def module_that_breaks(compile: Callable[..., Any]) -> Any:
    return compile(Breaking())(X)


@program("the graph breaks")
def forward_called_by_itself(compile: Callable[..., Any]) -> Any:
    return compile(Breaking()).forward(X)


@program("the graph breaks")
def a_hook_that_breaks(compile: Callable[..., Any]) -> Any:
    module = Net()
    module.register_forward_hook(lambda module, args, out: breaking(out))
    return compile(module)(X)


@program("the graph breaks")
def method_that_breaks(compile: Callable[..., Any]) -> Any:
    return compile(Breaking().forward)(X)


@program("the graph breaks")
def partial_that_breaks(compile: Callable[..., Any]) -> Any:
    return compile(functools.partial(lambda y, x: breaking(x) + y, X))(X)


@program("the graph breaks")
def object_that_breaks(compile: Callable[..., Any]) -> Any:
    class Called:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return breaking(x)

    return compile(Called())(X)


# How often


@program("compiled 2 times, the limit")
def at_the_limit(compile: Callable[..., Any]) -> Any:
    compiled = compile(lambda x, s: x + len(s), recompile_limit=2)
    return [compiled(X, s) for s in ("a", "bb", "ccc", "dddd")]


@program("compiled 2 times, the limit")
def module_at_the_limit(compile: Callable[..., Any]) -> Any:
    class Named(Net):
        def forward(self, x: torch.Tensor, name: str = "") -> torch.Tensor:
            return super().forward(x) + len(name)

    compiled = compile(Named(), recompile_limit=2)
    return [compiled(X, s) for s in ("a", "bb", "ccc", "dddd")]


@program("compiled 8 times, the limit")
def without_tensors_again_and_again(compile: Callable[..., Any]) -> Any:
    compiled = compile(lambda s: s.upper())
    return [compiled("a" * n) for n in range(20)]


@program("the graph breaks")
def after_many_errors_of_its_own(compile: Callable[..., Any]) -> Any:
    def picky(x: torch.Tensor, n: int) -> torch.Tensor:
        if n > 0:
            raise ValueError(n)
        return breaking(x)

    compiled = compile(picky)
    for n in range(1, 20):
        try:
            compiled(X, n)
        except ValueError:
            continue
    return compiled(X, 0)


# What fails


@program("failed to compile a graph: RuntimeError: planted")
def backend_that_fails(compile: Callable[..., Any]) -> Any:
    def backend(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("planted")

    return compile(fresh(), backend=backend)(X)


def running(error: Exception) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        raise error

    return lambda gm, inputs: run


@program("planted")
def graph_that_fails(compile: Callable[..., Any]) -> Any:
    return compile(fresh(), backend=running(RuntimeError("planted")))(X)


@program("too much")
def graph_without_memory(compile: Callable[..., Any]) -> Any:
    return compile(fresh(), backend=running(torch.OutOfMemoryError("too much")))(X)


@contextmanager
def planted(owner: Any, name: str) -> Iterator[None]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("planted")

    original = getattr(owner, name)
    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, original)


@program("failed to compile smooth: RuntimeError: planted|failed to compile")
def tracer_that_fails(compile: Callable[..., Any]) -> Any:
    import framesmith_dynamo.convert_frame.converter as convert

    with planted(convert, "outermost_frame"):
        return compile(fresh())(X)


@program("failed to compile")
def guards_that_fail(compile: Callable[..., Any]) -> Any:
    import framesmith_dynamo.convert_frame.converter as convert

    with planted(convert, "compile_guards"):
        return compile(fresh())(X)


# Data


@program("an assumption of its graph does not hold")
def data_that_are_not_as_they_were(compile: Callable[..., Any]) -> Any:
    compiled = compile(lambda x, y, factor: torch.add(x, x.sin(), alpha=factor.item()) + y)
    x = X.clone().requires_grad_()
    return [compiled(x, X, torch.tensor(factor)) for factor in (2.5, 1.0)]


def misunderstood(x: torch.Tensor) -> torch.Tensor:
    return x


@handles(misunderstood)
def _raises(tr: Tracer, args: Args, kwargs: Kwargs) -> Value:
    tr.raise_(TypeError, "what the program does not raise")


@program("tracing found an exception that the program did not raise")
def of_an_exception_that_is_not_raised(compile: Callable[..., Any]) -> Any:
    return compile(lambda x: misunderstood(x) + 1)(X)
