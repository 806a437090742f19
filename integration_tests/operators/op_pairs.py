"""Torch's operator database as programs of one call, each called with sizes A, then B, then A again.

    python -m integration_tests.operators.op_pairs [--backend NAME] [--limit N] [--dtypes float32,int64]
        [--shard 0/2] [NAME...]

prints each pair that is not equal to eager or takes more than one entry, and a summary. A pair of a type less precise
than float32 is "nearer" where it is not equal, and all that differs is at least as near to the same in float64 as what
eager mode gives: kernels keep float32 between operations that eager mode rounds.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves

import framesmith

OPS = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
#: Their results are whatever was in memory.
UNDEFINED = "empty"

Values = list[Any]


@dataclass(frozen=True)
class Pair:
    """A program of one call, and two lists of arguments for it that differ in their sizes and numbers."""

    program: Callable[..., Any]
    text: str
    first: Values
    second: Values
    process: Callable[[Any], Any]
    backward: bool

    @property
    def may_share(self) -> bool:
        """Whether one entry may do for both: nothing becomes 0 or 1 or ceases to be, no equal sizes become unequal.

        The same of the results, and there are as many.
        """
        first, second = (run(self.program, self, values) for values in (self.first, self.second))
        return len(first) == len(second) and not any(unlikeness(first, second))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a pair.

    `status`: equal, nearer, wrong, or refused (not compiled). `detail`: how it differs, or why it took several entries.
    """

    status: str
    detail: str = ""
    entries: int = 0
    breaks: int = 0


def pairs(name: str, dtype: torch.dtype, limit: int) -> Iterator[Pair]:
    """Pairs of up to `limit` samples of an operator that eager mode accepts, and for which it repeats itself."""
    op = OPS[name]
    if UNDEFINED in name or dtype not in op.supported_dtypes("cpu"):
        return
    backward = op.supports_autograd and dtype.is_floating_point and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), 60))
    flattened = [tree_flatten(((sample.input, *sample.args), sample.kwargs)) for sample in samples]
    chosen = range(0, len(samples), max(1, len(samples) // limit))
    for at in chosen[:limit]:
        values, spec = flattened[at]
        if not all(is_dense(value) for value in values):
            continue
        has_tensors = any(isinstance(value, torch.Tensor) for value in values)
        others = [found for found, other in flattened if other == spec and is_like(values, found, not has_tensors)]
        pair = next(made(op, values, spec, others, samples[at].output_process_fn_grad, backward), None)
        if pair is not None:
            yield pair


def is_dense(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.layout is torch.strided


def is_like(first: Values, second: Values, numbers: bool) -> bool:
    """Whether arguments differ in nothing but sizes, or in `numbers`."""
    return all(
        a.dim() == b.dim() and a.dtype == b.dtype
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else type(a) is type(b) and ((numbers and type(a) in (int, float)) or a == b)
        for a, b in zip(first, second, strict=True)
    )


def made(
    op: Any, values: Values, spec: Any, others: list[Values], process: Callable[[Any], Any], backward: bool
) -> Iterator[Pair]:
    """Pairs of `values` with those of other samples, or of other sizes; the likeliest to share an entry first."""
    candidates = [*others, *([resized(v, change) for v in values] for change in CHANGES)]
    candidates = [found for found in candidates if shapes(found) != shapes(values)]
    for second in sorted(candidates, key=lambda found: unlikeness(values, found)):
        program, text, varying = program_of(op, values, second, spec)
        first = [values[at] for at in varying]
        pair = Pair(program, text, first, [second[at] for at in varying], process, backward)
        if all(repeats(pair, arguments) for arguments in (pair.first, pair.second)):
            yield pair


#: The second sizes for the first ones.
CHANGES: tuple[Callable[[int], int], ...] = (lambda n: n + 1, lambda n: 2 * n, lambda n: max(n - 1, 2), lambda n: 3 * n)


def resized(value: Any, change: Callable[[int], int]) -> Any:
    """A tensor with other sizes, laid out in the same order, of the same elements over again; 0 and 1 stay."""
    if not isinstance(value, torch.Tensor):
        return value
    result = value.detach()
    for dim, size in enumerate(value.shape):
        if size > 1:
            result = result.index_select(dim, torch.arange(change(size)) % size)
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    back = sorted(range(value.dim()), key=order.__getitem__)
    return result.permute(order).contiguous().permute(back).requires_grad_(value.requires_grad)


def shapes(values: Values) -> list[Any]:
    """The sizes and numbers of arguments."""
    return [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in values]


def unlikeness(first: Values, second: Values) -> tuple[bool, bool]:
    """Why two lists of arguments do not share an entry: a 0 or 1 changes, or equal sizes become unequal."""
    numbers = {(a, b) for a, b in zip(first, second, strict=True) if type(a) in (int, float)}
    sizes = {
        pair
        for a, b in zip(first, second, strict=True)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        for pair in zip(a.shape, b.shape, strict=False)
    }
    special = any(a != b and (a in (0, 1) or b in (0, 1)) for a, b in numbers | sizes)
    return special, len({a for a, _ in sizes}) != len(sizes)


def program_of(op: Any, first: Values, second: Values, spec: Any) -> tuple[Callable[..., Any], str, list[int]]:
    """A function of the tensors and of the numbers that differ, its text, and which of the values those are."""
    varying = [
        at
        for at, (a, b) in enumerate(zip(first, second, strict=True))
        if isinstance(a, torch.Tensor) or (type(a) in (int, float) and a != b)
    ]
    names: dict[str, Any] = {"op": as_of_a_user(op.op)}
    words = []
    for at, value in enumerate(first):
        if at not in varying:
            names[f"constant{at}"] = value
        words.append(_Word(f"x{at}" if at in varying else f"constant{at}"))
    args, kwargs = torch.utils._pytree.tree_unflatten(words, spec)
    inner = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    text = f"def program({', '.join(f'x{at}' for at in varying)}):\n    return op({inner})\n"
    exec(compile(text, f"<{op.name}>", "exec"), names)
    return names["program"], text, varying


def as_of_a_user(function: Any) -> Any:
    """Return torch's database's wrapper of an operator as a user's function: code of torch.testing is not compiled."""
    if not isinstance(function, FunctionType) or not function.__module__.startswith("torch.testing"):
        return function
    module = ModuleType(f"{__name__}.{function.__module__}")
    sys.modules[module.__name__] = module
    vars(module).update({**function.__globals__, "__name__": module.__name__, "wrapper_set_seed": unseeded})
    code = function.__code__.replace(co_filename=__file__)
    return FunctionType(code, vars(module), function.__name__, function.__defaults__, function.__closure__)


def unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of what sets a seed before each call: `run` does."""
    return op(*args, **kwargs)


class _Word:
    """A name that stands for itself in the text of a call."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def repeats(pair: Pair, values: Values) -> bool:
    """Whether eager mode accepts these arguments, and does the same twice."""
    try:
        one, two = (run(pair.program, pair, values) for _ in range(2))
    except Exception:
        return False
    return bool(one) and difference(one, two) is None


def run(function: Callable[..., Any], pair: Pair, values: Values) -> Values:
    """All that a call with copies of the values gives: results, the arguments afterwards, gradients, random state."""
    torch.manual_seed(0)
    copies = [
        value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        for value in values
    ]
    results = tree_leaves(function(*copies))
    found = [*results, *copies, torch.get_rng_state()]
    if pair.backward:
        found += gradients(tree_leaves(pair.process(results[0] if len(results) == 1 else tuple(results))), copies)
    return found


def gradients(results: Values, copies: Values) -> Values:
    """The gradients of all results that have any; their strides are not compared."""
    roots = [one for one in results if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    leaves = [one for one in copies if isinstance(one, torch.Tensor) and one.requires_grad]
    if not roots or not leaves:
        return []
    torch.manual_seed(1)
    found = torch.autograd.grad(roots, leaves, [tangent(root) for root in roots], allow_unused=True)
    return [None if one is None else one.contiguous() for one in found]


def tangent(root: torch.Tensor) -> torch.Tensor:
    """Random numbers of so few bits that they are the same in every type."""
    real, imaginary = (torch.randint(-16, 17, root.shape) / 8 for _ in range(2))
    return (torch.complex(real, imaginary) if root.is_complex() else real).to(root.dtype)


def difference(expected: Values, actual: Values) -> str | None:
    """In what two runs differ."""
    if len(expected) != len(actual):
        return f"{len(expected)} values became {len(actual)}"
    for at, (one, two) in enumerate(zip(expected, actual, strict=True)):
        if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
            same = type(one) is type(two) and (one == two or (one != one and two != two))
        elif described(one) != described(two):
            return f"value {at}: {described(one)} became {described(two)}"
        else:
            try:
                torch.testing.assert_close(two.detach(), one.detach(), equal_nan=True)
                same = True
            except AssertionError as error:
                return f"value {at}: {' '.join(str(error).split())}"
        if not same:
            return f"value {at}: {one!r} became {two!r}"
    return None


def is_nearer(pair: Pair, values: Values, expected: Values, actual: Values) -> bool:
    """Whether all that differs is of a type less precise than float32, and as near to float64 as what is expected."""
    if len(expected) != len(actual):
        return False
    wide = [
        value.detach().double().requires_grad_(value.requires_grad) if is_rounded(value) else value for value in values
    ]
    try:
        exact = run(pair.program, pair, wide)
    except Exception:
        return False
    if len(exact) != len(expected):
        return False
    differing = [at for at, two in enumerate(zip(expected, actual, strict=True)) if difference(*([one] for one in two))]
    return all(
        is_rounded(one) and described(one) == described(two) and distance(two, ref) <= distance(one, ref)
        for one, two, ref in ((expected[at], actual[at], exact[at]) for at in differing)
    )


def is_rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The root of the sum of squares by which elements differ; what is not finite has to be the same."""
    found, exact = found.detach().double(), exact.detach().double()
    same = (found == exact) | (found.isnan() & exact.isnan())
    return float(torch.where(same, 0.0, found - exact).norm())


def described(value: torch.Tensor) -> tuple[Any, ...]:
    """Return the metadata of a tensor; strides where they matter."""
    strides = [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]
    return value.dtype, tuple(value.shape), strides if value.numel() else None, value.requires_grad


class Messages(logging.Handler):
    """Keeps the first message about a break or a recompilation, and hands none on, inside a `with`."""

    LOGGERS = (logging.getLogger("framesmith.breaks"), logging.getLogger("framesmith.recompiles"))

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()

    def __enter__(self) -> Messages:
        self._before = [(logger.level, logger.propagate) for logger in self.LOGGERS]
        for logger in self.LOGGERS:
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        for logger, (level, propagate) in zip(self.LOGGERS, self._before, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate
            logger.removeHandler(self)


def run_pair(pair: Pair, backend: str) -> Outcome:
    """Call the program, compiled with dynamic shapes, with A, B and A, and compare with eager."""
    framesmith.reset()
    with Messages() as messages:
        return _compared(pair, backend, messages)


def _compared(pair: Pair, backend: str, messages: Messages) -> Outcome:
    compiled = framesmith.compile(pair.program, backend=backend, dynamic=True, strict=True)
    nearer = ""
    for letter, values in (("A", pair.first), ("B", pair.second), ("A again", pair.first)):
        try:
            actual = run(compiled, pair, values)
        except Exception as error:
            kind = "refused" if isinstance(error, framesmith.FramesmithError) else "wrong"
            return Outcome(kind, f"{letter}: {type(error).__name__}: {' '.join(str(error).split())}")
        expected = run(pair.program, pair, values)
        differs = difference(expected, actual)
        if differs is not None:
            if not is_nearer(pair, values, expected, actual):
                return Outcome("wrong", f"{letter}: {differs}")
            nearer = f"{letter}: {differs}"
    found = framesmith.stats()
    status, detail = ("nearer", nearer) if nearer else ("equal", messages.text)
    return Outcome(status, detail, 1 + found["recompilations"], found["breaks"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--limit", type=int, default=3)
    parser.add_argument("--dtypes", default=",".join(str(dtype).removeprefix("torch.") for dtype in DTYPES))
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    part, of = map(int, options.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    out = open(options.out, "w") if options.out else None
    for name in options.names or sorted(OPS)[part::of]:
        for dtype in (getattr(torch, word) for word in options.dtypes.split(",")):
            started = time.time()
            for number, pair in enumerate(pairs(name, dtype, options.limit)):
                outcome = run_pair(pair, options.backend)
                counts[outcome.status] += 1
                may_share = pair.may_share
                counts["may share"] += may_share
                counts["one entry"] += may_share and outcome.entries == 1 and not outcome.breaks
                counts["with breaks"] += outcome.breaks > 0
                line = {"name": name, "dtype": str(dtype), "number": number, "may_share": may_share, **vars(outcome)}
                line |= {"first": str(shapes(pair.first)), "second": str(shapes(pair.second)), "text": pair.text}
                if out is not None:
                    print(json.dumps(line), file=out, flush=True)
                if outcome.status != "equal" or outcome.entries != 1 or outcome.breaks:
                    print(f"{name} {dtype} {number} {outcome} {line['first']} {line['second']}"[:600], flush=True)
            counts["seconds"] += int(time.time() - started)
    print(dict(counts))


if __name__ == "__main__":
    main()
