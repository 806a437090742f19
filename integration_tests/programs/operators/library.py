"""Custom operators, registered once a process: effects, mutated arguments, results that are no tensors, or none."""

from collections.abc import Sequence

import torch
from torch.library import custom_op

SEEN: list[object] = []
"""Return the notes of the operators, in the order in which they ran."""

NAMESPACE = "programs"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def note(what: object) -> None:
    """Note that an operator ran, without a fake tensor's content."""
    SEEN.append(what)


@custom_op(f"{NAMESPACE}::log", mutates_args=())
def log(x: torch.Tensor, tag: str) -> None:
    note((tag, float(x.sum())))


@log.register_fake
def _(x, tag):
    return None


@custom_op(f"{NAMESPACE}::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    note(("doubled", x.numel()))
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op(f"{NAMESPACE}::count_positive", mutates_args=())
def count_positive(x: torch.Tensor) -> int:
    note("count_positive")
    return int((x > 0).sum())


@count_positive.register_fake
def _(x):
    return 0


@custom_op(f"{NAMESPACE}::largest", mutates_args=())
def largest(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    note("largest")
    return x.clone(), float(x.max())


@largest.register_fake
def _(x):
    return torch.empty_like(x), 0.0


@custom_op(f"{NAMESPACE}::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, by: float) -> None:
    note("scale_")
    x.mul_(by)


@scale_.register_fake
def _(x, by):
    return None


@custom_op(f"{NAMESPACE}::add_into", mutates_args=("total",))
def add_into(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return total * 2


@add_into.register_fake
def _(total, x):
    return torch.empty_like(total)


@custom_op(f"{NAMESPACE}::swap_", mutates_args=("a", "b"))
def swap_(a: torch.Tensor, b: torch.Tensor) -> None:
    held = a.clone()
    a.copy_(b)
    b.copy_(held)


@swap_.register_fake
def _(a, b):
    return None


@custom_op(f"{NAMESPACE}::zero_all_", mutates_args=("items",))
def zero_all_(items: Sequence[torch.Tensor]) -> None:
    note(len(items))
    for t in items:
        t.zero_()


@zero_all_.register_fake
def _(items):
    return None


@custom_op(f"{NAMESPACE}::maybe_add_", mutates_args=("total",))
def maybe_add_(x: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    if total is not None:
        total.add_(x)
    return x + 1


@maybe_add_.register_fake
def _(x, total=None):
    return torch.empty_like(x)


@custom_op(f"{NAMESPACE}::positive_only", mutates_args=())
def positive_only(x: torch.Tensor) -> torch.Tensor:
    note("positive_only")
    if bool((x <= 0).any()):
        raise ValueError(f"not positive: {x.tolist()}")
    return x.sqrt()


@positive_only.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op(f"{NAMESPACE}::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(x.shape)


@noise.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op(f"{NAMESPACE}::pieces", mutates_args=())
def pieces(x: torch.Tensor) -> list[torch.Tensor]:
    note("pieces")
    return [x[:1].clone(), x[1:].clone()]


@pieces.register_fake
def _(x):
    return [torch.empty_like(x[:1]), torch.empty_like(x[1:])]


@custom_op(f"{NAMESPACE}::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    note("without_fake")
    return x + 3


@custom_op(f"{NAMESPACE}::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    note("cubed")
    return x**3


@cubed.register_fake
def _(x):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _cubed_gradient(ctx, gradient):
    (x,) = ctx.saved_tensors
    return 3 * x**2 * gradient


cubed.register_autograd(_cubed_gradient, setup_context=_save)

LIBRARY.define("clip_(Tensor(a!) x, *, float at=1.0) -> Tensor(a!)")


@torch.library.impl(LIBRARY, "clip_", "CompositeExplicitAutograd")
def clip_(x, *, at=1.0):
    return x.clamp_(-at, at)


@torch.library.register_fake(f"{NAMESPACE}::clip_", lib=LIBRARY)
def _(x, *, at=1.0):
    return x


LIBRARY.define("composed(Tensor x) -> Tensor")


@torch.library.impl(LIBRARY, "composed", "CompositeImplicitAutograd")
def composed(x):
    return (x * 2).relu() + 1
