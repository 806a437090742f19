"""Programs with scans whose bodies are pointwise: what they carry, in which order, and in how many kernels they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Program:
    """A function of scans (`graphs.tracing_scans.Eager`) and of inputs of these shapes and of the dtype."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    kernels: int = 1
    dtype: torch.dtype = torch.float32

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(len(self.name))
        found = [torch.randn(shape, generator=generator) for shape in self.shapes]
        if not self.dtype.is_floating_point:
            return [(one * 5).to(self.dtype) for one in found]
        return [one.to(self.dtype) for one in found]


def linear(a1: Tensor, b1: Tensor, a2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    return a1 * a2, a2 * b1 + b2


def selective(s: Any, dt: Tensor, a: Tensor, b: Tensor, u: Tensor) -> tuple[Tensor]:
    """The states of a selective state-space model: batch, channels, length, states."""
    decay = torch.exp(-a.abs()[None, :, None, :] * dt.abs()[:, :, :, None])
    given = dt.abs()[:, :, :, None] * b[:, None, :, :] * u[:, :, :, None]
    _, states = s.associative_scan(linear, (decay.movedim(2, 0), given.movedim(2, 0)))
    return (states.movedim(0, 2),)


def gradient(s: Any, decay: Tensor, before: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of such states: a scan the other way, of what is carried before the step."""

    def step(carried: Tensor, a: Tensor, h: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        total = carried + g
        return total * a, total * h, total

    xs = (decay.movedim(2, 0), before.movedim(2, 0), grad.movedim(2, 0))
    _, of_decay, of_given = s.scan(step, (torch.zeros_like(decay[:, :, 0]),), xs, reverse=True)
    return of_decay.movedim(0, 2), of_given.movedim(0, 2)


def both(s: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    decays, states = s.associative_scan(linear, (a, b))
    return decays, states


def average(s: Any, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        c = c * 0.9 + x * 0.1
        return c, c

    return tuple(s.scan(step, (start,), (x,)))  # type: ignore[return-value]


def twisted(s: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Two carried values that depend on each other, seen before the step and after it."""

    def step(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return b * 0.5, torch.tanh(a + x), a, b + x, torch.tanh(a + x) * x

    return tuple(s.scan(step, (a, b), (x,))[2:])


def swapped(s: Any, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return tuple(s.scan(lambda a, b, x: (b, a, a * x, b - x), (a, b), (x,), reverse=True)[2:])


def along_rows(s: Any, a: Tensor, b: Tensor) -> tuple[Tensor]:
    return (s.associative_scan(linear, (a.movedim(-1, 0), b.movedim(-1, 0)))[1].movedim(0, -1),)


def softmaxes(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest element so far, and the sum of exponentials below it."""

    def join(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
        m = torch.maximum(m1, m2)
        return m, s1 * torch.exp(m1 - m) + s2 * torch.exp(m2 - m)

    return tuple(s.associative_scan(join, (x, torch.ones_like(x))))  # type: ignore[return-value]


def positions(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest element so far and its position, a pair of types; bools are carried, too."""

    def step(best: Tensor, at: Tensor, seen: Tensor, x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        more = x > best
        seen = seen | (x > 1)
        best, at = torch.where(more, x, best), torch.where(more, k, at)
        return best, at, seen, at, seen

    steps = torch.arange(x.shape[0]).reshape(-1, 1).expand(x.shape)
    starts = (x[0] - 1, torch.zeros_like(x[0], dtype=torch.int64), x[0] > 5)
    return tuple(s.scan(step, starts, (x, steps))[3:])  # type: ignore[return-value]


def counted(s: Any, x: Tensor) -> tuple[Tensor]:
    return (s.scan(lambda c, x: ((c * 3 + x) % 7, c), (x[0],), (x,))[1],)


def narrow(s: Any, x: Tensor, start: Tensor) -> tuple[Tensor]:
    """A carried value of one column, results of many."""
    return (s.scan(lambda c, x, y: (c * 0.5 + x, y * c), (start,), (x[:, :, :1], x))[1],)


def with_captured(s: Any, x: Tensor, w: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    def step(c: Tensor, x: Tensor, w: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        c = torch.sigmoid(c * w + x) + k
        return c, c * 2

    last, stack = s.scan(step, (x[0] * 0,), (x,), (w, k))
    return last + 1, torch.relu(stack)


def mirrored(s: Any, x: Tensor) -> tuple[Tensor]:
    """Each step reads what is carried from the other end: at two positions in all."""
    return (s.scan(lambda c, x: (c.flip(0) * 0.5 + x, c), (x[0],), (x,))[1],)


def mapped(s: Any, x: Tensor) -> tuple[Tensor]:
    return tuple(s.scan(lambda x: (x.sin() * 2,), (), (x,)))  # type: ignore[return-value]


SEQUENCES = ((2, 3, 7, 16), (2, 3, 7, 16))


def of_one_name(s: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Return a scan whose body multiplies, of the result of a multiplication: two nodes have one name."""
    last, steps = s.scan(lambda c, a: (c * a, (c * a).sin()), (torch.ones_like(x[0]),), (x * 0.5,))
    return last, steps


PROGRAMS = (
    Program("of one name", of_one_name, ((6, 9),), kernels=2),
    Program("selective", selective, ((2, 5, 7), (5, 16), (2, 7, 16), (2, 5, 7))),
    Program("selective, few states", selective, ((1, 9, 33), (9, 3), (1, 33, 3), (1, 9, 33))),
    Program("selective in halves", selective, ((2, 5, 7), (5, 16), (2, 7, 16), (2, 5, 7)), 2, torch.bfloat16),
    Program("gradient", gradient, (*SEQUENCES, (2, 3, 7, 16))),
    Program("gradient of doubles", gradient, (*SEQUENCES, (2, 3, 7, 16)), dtype=torch.float64),
    Program("both", both, ((9, 40), (9, 40))),
    Program("both, wide", both, ((5, 1100), (5, 1100))),
    Program("both of one step", both, ((1, 40), (1, 40)), kernels=2),
    Program("both of one line", both, ((50,), (50,))),
    Program("average", average, ((20, 6), (6,)), kernels=2),
    Program("twisted", twisted, ((11, 35), (35,), (35,))),
    Program("twisted halves", twisted, ((11, 35), (35,), (35,)), dtype=torch.float16),
    Program("swapped", swapped, ((11, 35), (35,), (35,))),
    Program("along rows", along_rows, ((20, 33), (20, 33))),
    Program("softmaxes", softmaxes, ((12, 30),)),
    Program("positions", positions, ((12, 30),)),
    Program("counted", counted, ((12, 30),), dtype=torch.int32),
    Program("narrow", narrow, ((7, 4, 9), (4, 1))),
    Program("with captured", with_captured, ((7, 20), (20,), (1,)), kernels=2),
    Program("mirrored", mirrored, ((7, 20),)),
    Program("mapped", mapped, ((7, 20),)),
)

#: Programs whose sizes differ from each other, and whose inputs have those of one program at other sizes, too.
OTHER_SIZES = {
    "selective": (((3, 4, 9), (4, 17), (3, 9, 17), (3, 4, 9)), ((2, 70, 300), (70, 5), (2, 300, 5), (2, 70, 300))),
    "gradient": (((2, 3, 9, 40),) * 3, ((5, 2, 3, 8),) * 3),
    "both": (((30, 1200),) * 2, ((4, 3),) * 2),
    "along rows": (((70, 5),) * 2, ((3, 100),) * 2),
    "softmaxes": (((5, 70),), ((200, 3),)),
}
