"""Random programs with bodies in them, by seed: Functions, transforms, control flow, regions, checkpoints, nested.

In eager mode torch compiles control flow, by torch.compile; here eager mode has plain loops and branches for it.

    python -m integration_tests.control_flow.random_bodies FIRST COUNT [--show]

prints the seeds whose compiled program differs from eager mode in values, gradients, hooks, random numbers or errors.
"""

from __future__ import annotations

import argparse
import linecache
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import framesmith
from integration_tests.control_flow import plain
from integration_tests.control_flow.layers import random_layers
from integration_tests.transforms.autograd_functions import programs

Tensor = torch.Tensor
SIZE = 6
#: The depth to which bodies are nested.
DEPTH = 3
UNARY = ("sin", "cos", "tanh", "exp", "sigmoid", "abs", "neg", "relu")
BINARY = ("+", "*", "-")
#: A call of a Function of one tensor that gives one of the same shape.
APPLIED = (
    "f.Swish.apply({0})",
    "f.SwishTwice.apply({0})",
    "f.Around.apply({0})",
    "f.Reversed.apply({0}, {number})",
    "f.Doubling.apply({0})",
    "f.Rounded.apply({0})",
    "f.Clamped.apply({0}, -{number}, {number})",
    "f.Kept.apply({0})",
    "f.Once.apply({0}.tanh())",
    "f.Affine.apply({0}, {1})",
    "f.Affine.apply({0}, {1}, {2})",
    "f.SinCos.apply({0})[{bit}]",
    "sum(f.SinCos.apply({0}))",
    "f.Power.apply({0}.exp(), {whole})",
    "f.Counted.apply({0})",
    "f.Dropped.apply({0})",
    "f.InPlace.apply({0} * 1)",
    "f.Summed.apply({0}) * {1}",
)
TRANSFORMS = ("grad", "grad_and_value", "vmap", "vjp", "jvp", "jacrev", "jacfwd", "hessian")
#: Transforms take Functions with `setup_context` only.
NEWER = "f.Power."
#: Under control flow, a body that draws random numbers and has gradients is not compiled.
RANDOM = "f.Dropped."
PRELUDE = """
import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint
"""


class Program:
    """The source of one program: a function of two tensors of SIZE elements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines = [PRELUDE, "def program(x, y):"]
        self.count = 0
        self.transforms = 0
        self.controls = 0
        names = self.block(["x", "y"], 1, depth=0)
        results = self.random.sample(names, min(len(names), self.random.randint(1, 3)))
        self.line(1, f"return ({', '.join(results)},)")

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def block(self, names: list[str], indent: int, depth: int) -> list[str]:
        """Write some statements; return all names that are bound then."""
        names = [*names]
        for _ in range(self.random.randint(2, 5 if depth == 0 else 3)):
            names.append(self.statement(names, indent, depth))
        return names

    def statement(self, names: list[str], indent: int, depth: int) -> str:
        kinds: list[Callable[[list[str], int, int], str]] = [self.unary, self.binary, self.applied, self.applied]
        if depth < DEPTH:
            kinds += [self.body, self.body]
            if not self.transforms:
                kinds += [self.controlled, self.controlled]
        if depth == 0:
            kinds += [self.hook, self.block_without_gradients]
        kinds += [self.in_place, self.called, self.layers]
        if not self.controls:
            kinds.append(self.random_numbers)
        return self.random.choice(kinds)(names, indent, depth)

    def pick(self, names: list[str]) -> str:
        return self.random.choice(names[-4:])

    def unary(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        self.line(indent, f"{made} = {self.pick(names)}.{self.random.choice(UNARY)}()")
        return made

    def binary(self, names: list[str], indent: int, depth: int) -> str:
        made, sign = self.name(), self.random.choice(BINARY)
        self.line(indent, f"{made} = ({self.pick(names)} {sign} {self.pick(names)}).tanh()")
        return made

    def applied(self, names: list[str], indent: int, depth: int) -> str:
        made, draw = self.name(), self.random
        allowed = [call for call in APPLIED if call.startswith(NEWER)] if self.transforms else APPLIED
        if self.controls:
            allowed = [call for call in allowed if not call.startswith(RANDOM)]
        call = draw.choice(allowed).format(
            *(self.pick(names) for _ in range(3)),
            number=draw.choice([0.25, 0.5, 2.0]),
            bit=draw.randint(0, 1),
            whole=draw.randint(1, 3),
        )
        self.line(indent, f"{made} = {call}")
        return made

    def in_place(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        self.line(indent, f"{made} = {self.pick(names)}.clone()")
        self.line(indent, f"{made}.mul_({self.random.choice([0.5, 2.0])})")
        return made

    def random_numbers(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        self.line(indent, f"{made} = {self.pick(names)} * torch.rand({SIZE})")
        return made

    def hook(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        self.line(indent, f"{made} = {self.pick(names)} * 1.5")
        self.line(indent, f"if {made}.requires_grad:")
        self.line(indent + 1, f"{made}.register_hook(noting({self.count}, {self.random.choice([0.5, 2.0])}))")
        return made

    def block_without_gradients(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        self.line(indent, "with torch.no_grad():")
        self.line(indent + 1, f"{made} = {self.pick(names)}.sin()")
        return made

    def called(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        given = f'{{"bias": {self.pick(names)}}}'
        self.line(indent, f"{made} = functional_call(LAYER, {given}, ({self.pick(names)},)).tanh()")
        return made

    def layers(self, names: list[str], indent: int, depth: int) -> str:
        made = self.name()
        self.line(indent, f"{made} = {self.pick(names)}")
        self.line(indent, "for layer in LAYERS:")
        self.line(indent + 1, f"{made} = layer({made}{self.random.choice(['', '', ', 0.5'])})")
        return made

    def body(self, names: list[str], indent: int, depth: int) -> str:
        """A nested function, and a transform or checkpoint of it."""
        made, draw = self.name(), self.random
        function, argument = f"body_{made}", f"a{made}"
        self.line(indent, f"def {function}({argument}):")
        kind = draw.choice(["checkpoint", "checkpoint", "call", "region", *TRANSFORMS])
        transforms = kind in TRANSFORMS
        self.transforms += transforms
        inner = self.block([*names, argument], indent + 1, depth + 1)
        self.transforms -= transforms
        last = inner[-1] if kind != "vmap" else f"({inner[-1]} * {argument}).sum()"
        summed = kind.startswith("grad") or kind == "hessian"
        self.line(indent + 1, f"return {last}.sum()" if summed else f"return {last}")
        given, other = self.pick(names), self.pick(names)
        calls = {
            "grad": f"grad({function})({given})",
            "grad_and_value": f"sum(grad_and_value({function})({given}))",
            "vmap": f"vmap({function}, randomness='different')({given}.expand(3, {SIZE})).sum() * {given}",
            "checkpoint": f"checkpoint({function}, {given}, use_reentrant=False)",
            "call": f"{function}({given})",
            "region": f"region({function}, {given}) + region({function}, {other})",
            "vjp": f"vjp({function}, {given})[1]({other})[0]",
            "jvp": f"sum(jvp({function}, ({given},), ({other},)))",
            "jacrev": f"jacrev({function})({given}).mean(0)",
            "jacfwd": f"jacfwd({function})({given}).mean(1)",
            "hessian": f"hessian({function})({given}).mean(0)",
        }
        self.line(indent, f"{made} = {calls[kind]}")
        return made

    def controlled(self, names: list[str], indent: int, depth: int) -> str:
        """Nested functions, and control flow of them."""
        made, draw = self.name(), self.random
        kind = draw.choice(["cond", "while_loop", "scan", "associative_scan", "mapped"])
        function, other, arguments = f"body_{made}", f"other_{made}", [f"a{made}", f"b{made}"]
        self.controls += 1
        self.line(indent, f"def {function}({', '.join(arguments)}):")
        inner = self.block([*names, *arguments], indent + 1, depth + 1)
        self.line(indent + 1, f"return {self.returned(kind, inner[-1], arguments)}")
        if kind == "cond":
            self.line(indent, f"def {other}({', '.join(arguments)}):")
            inner = self.block([*names, *arguments], indent + 1, depth + 1)
            self.line(indent + 1, f"return {inner[-1]} * 1")
        self.controls -= 1
        first, second = self.pick(names), self.pick(names)
        rows = f"{second}.expand({draw.randint(1, 4)}, {SIZE}) * {first}"
        reverse = draw.choice(["True", "False"])
        calls = {
            "cond": f"cond({first}.sum() > {second}.mean(), {function}, {other}, ({first}, {second}))",
            "while_loop": f"while_loop(lambda n, a: n < {draw.randint(1, 3)}, lambda n, a: (n + 1, {function}(a, a)), "
            f"(torch.tensor(0), {first}))[1]",
            "scan": f"sum(scan({function}, {first} * 1, {rows}, reverse={reverse})[1])",
            "associative_scan": f"associative_scan(lambda a, b: a * b, {rows}, 0, reverse={reverse})[-1]",
            "mapped": f"mapped({function}, {rows}, {second}).sum(0)",
        }
        self.line(indent, f"{made} = {calls[kind]}")
        return made

    @staticmethod
    def returned(kind: str, last: str, arguments: list[str]) -> str:
        if kind == "scan":
            return f"({last} * 1 + {arguments[0]}).tanh(), {last} * {arguments[1]}"
        return f"{last} * 1"


class Run:
    """One program in eager mode or compiled, with a log of hooks of its own, and the functions of control flow."""

    def __init__(self, text: str, seed: int, control: Mapping[str, Any] = plain.PLAIN) -> None:
        torch.manual_seed(seed)
        self.controlled = any(f" {name}(" in text or f"({name}(" in text for name in plain.PLAIN)
        self.ran: list[Any] = []
        self.layer = nn.Linear(SIZE, SIZE)
        self.layers = random_layers(seed, SIZE)
        file = f"<random body {seed}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        names: dict[str, Any] = {
            "f": programs,
            "LAYER": self.layer,
            "LAYERS": self.layers,
            "noting": self.noting,
            **control,
        }
        exec(compile(text, file, "exec"), names)
        self.program: Callable[..., Any] = names["program"]

    def noting(self, name: int, factor: float) -> Callable[[Tensor], Tensor]:
        def hook(gradient: Tensor) -> Tensor:
            self.ran.append(name)
            return gradient * factor

        return hook

    def outcome(self, seed: int) -> list[Any]:
        """Return what a call and its backward pass show."""
        torch.manual_seed(seed)
        programs.NOTED.clear()
        self.ran.clear()
        self.layer.zero_grad()
        for one in [*self.layers.parameters(), *self.layers.buffers()]:
            one.grad = None
        x, y = (torch.randn(SIZE).requires_grad_(needs) for needs in (True, seed % 3 > 0))
        try:
            results = self.program(x, y)
            needing = [one for one in results if one.requires_grad]
            if needing:
                torch.autograd.backward([(one * torch.linspace(1, 2, SIZE)).sum() for one in needing])
        except Exception as error:
            return [
                "error" if self.controlled else type(error).__name__
            ]  # torch.compile's, if torch's own function runs
        # All results of control flow require gradients where an operand does.
        shown = [(one.detach().clone(), one.requires_grad or self.controlled) for one in results]
        parameters = [*self.layer.parameters(), *self.layers.parameters(), *self.layers.buffers()]
        grads = [x.grad, y.grad, *(one.grad for one in parameters)]
        # Where a break leaves control flow to torch, it loses what its bodies change.
        return [shown, grads, [*self.ran], [] if self.controlled else [*programs.NOTED], torch.rand(2)]


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes are equal, up to rounding; control flow gives zeros where no gradient arrives."""
    if (one is None) is not (other is None):
        return any(isinstance(each, Tensor) and not each.any() for each in (one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def difference(seed: int, compiler: Callable[..., Any] = framesmith.compile) -> str | None:
    """Return how the program of this seed, made by a compiler, differs from eager mode, or None.

    A program that differs in float32 alone is one that magnifies rounding.
    """
    found = _difference(seed, compiler)
    if found is None:
        return None
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return None if _difference(seed, compiler) is None else found
    finally:
        torch.set_default_dtype(before)


def _difference(seed: int, compiler: Callable[..., Any]) -> str | None:
    text = Program(seed).text
    eager, subject = Run(text, seed), Run(text, seed, plain.TORCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = eager.outcome(seed)
        if not same(want, Run(text, seed).outcome(seed)):
            return None  # it does not repeat
        subject.program = compiler(subject.program, strict=True)
        for call in ("first", "second"):
            got = subject.outcome(seed)
            # Torch's own functions, to which a break leaves the call, refuse more than loops and branches do.
            if not same(got, want) and not same(got, Run(text, seed, plain.TORCH).outcome(seed)):
                return f"{call} call\n{text}\neager    {want}\ncompiled {got}"
    framesmith.reset()
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--show", action="store_true", help="print the programs that differ, and what they give")
    arguments = parser.parse_args()
    found = 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        text = difference(seed)
        if text is not None:
            found += 1
            print(seed, text if arguments.show else "", flush=True)
    print(f"{found} of {arguments.count} differ")


if __name__ == "__main__":
    main()
