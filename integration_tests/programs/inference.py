"""In-place forms of every kind, in inference mode, under `no_grad` and neither: around, as a block, as a decorator.

A form takes numbers `x` and `y`, both 2 by 3, and whole numbers `n`; it may change `x` and `n`.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from integration_tests.differential import Case
from integration_tests.families import Family, nothing
from integration_tests.programs.forms_of_layers import LAYERS
from integration_tests.programs.forms_of_methods import METHODS

family = Family()
Form = Callable[..., Any]
FORMS: dict[str, Form] = {**METHODS, **LAYERS}


def form(fn: Form) -> Form:
    FORMS[fn.__name__] = fn
    return fn


def _augmented(name: str, update: Form) -> None:
    FORMS[f"augmented_{name}"] = update


def _whole(update: Form) -> Form:
    return lambda x, y, n: update(n, y.to(torch.int64))


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"):
    _augmented(f"{_name}_tensor", lambda x, y, n, op=getattr(operator, _name): op(x, y))
    _augmented(f"{_name}_number", lambda x, y, n, op=getattr(operator, _name): op(x, 2))
for _name in ("iand", "ior", "ixor", "ilshift", "irshift"):
    _augmented(f"{_name}_whole", _whole(getattr(operator, _name)))


@form
def statement_add(x, y, n):
    x += y
    n -= 1
    return x


@form
def statement_other(x, y, n):
    x *= 3
    x -= y
    x /= 2
    n //= 2
    n %= 3
    n **= 2
    n |= 4
    n &= 6
    n ^= 1
    n <<= 2
    n >>= 1
    return x * 1


@form
def statement_on_items(x, y, n):
    x[0] += 1
    x[:, 1] *= y[:, 0]
    x[x > 1] -= 5
    n[1, 0] //= 2
    return x


@form
def statement_on_attributes(x, y, n):
    holder = nn.Module()
    holder.t = x
    holder.t += y
    holder.t[0] *= 2
    return holder.t


@form
def store_number(x, y, n):
    x[0] = 7
    x[..., 1] = True
    x[1, 2] = float("inf")
    return x


@form
def store_tensor(x, y, n):
    x[0] = y[1]
    x[:, 1:] = y[:, :2]
    x[1, 1] = y.sum()
    return x


@form
def store_everything(x, y, n):
    x[:] = y * 3
    x[...] += 1
    x[None, 0] = 2
    return x


@form
def store_by_mask(x, y, n):
    x[x > 0] = 0
    x[(y > 1) & (x < 1)] = y.mean()
    return x


@form
def store_by_index(x, y, n):
    x[torch.tensor([1, 0]), torch.tensor([2, 0])] = torch.tensor([8.0, 9.0])
    x[[0, 1], :1] = 4.0
    x[torch.tensor(1)] = y[0]
    return x


@form
def store_in_something_new(x, y, n):
    mask = torch.zeros(3)
    mask[1:] = 1
    y = x * mask
    y += 10
    return y


@form
def store_in_a_loop(x, y, n):
    out = torch.empty(3, 2)
    for k in range(3):
        out[k] = x[:, k] * k
        out[k, 0] += 1
    return out


@form
def store_unpacked(x, y, n):
    x[0], x[1] = x[1].clone(), y[0]
    x[0, 0], first = 3.0, x[0, 0]
    return x, first


@form
def out_of_argument(x, y, n):
    torch.add(x, y, out=x)
    return torch.mul(x, 2, out=x)


@form
def out_of_something_new(x, y, n):
    z = torch.zeros(2, 3)
    torch.sub(x, y, out=z)
    torch.exp(z, out=z)
    return z


@form
def out_that_grows(x, y, n):
    z = torch.empty(0)
    torch.matmul(x, y.t(), out=z)
    return z


@form
def out_of_several(x, y, n):
    values, indices = torch.empty(2), torch.empty(2, dtype=torch.int64)
    torch.max(x, dim=1, out=(values, indices))
    torch.sort(x, dim=1, out=(x, n))
    return values, indices


@form
def out_of_a_view(x, y, n):
    torch.add(y[0], 1, out=x[1])
    torch.cat([y[0, :1], y[1, :2]], out=x[0])
    return x


@form
def out_of_another_type(x, y, n):
    torch.gt(x, y, out=n)
    return torch.floor(y, out=x)


@form
def out_of_makers(x, y, n):
    torch.arange(6, out=n)
    torch.zeros(2, 3, out=x)
    return torch.full((2, 3), 2.0, out=x)


@form
def view_flat(x, y, n):
    x.view(-1).add_(1)
    x.flatten()[0] = 5
    return x


@form
def view_transposed(x, y, n):
    x.t().mul_(y.t())
    x.transpose(0, 1)[0] = 9
    return x.t()


@form
def view_sliced(x, y, n):
    x[1:].fill_(3)
    x[:, ::2].sub_(1)
    x.narrow(1, 0, 1).zero_()
    x.select(0, 1).copy_(y[0])
    return x


@form
def view_diagonal(x, y, n):
    x.diagonal().zero_()
    x.unfold(1, 2, 1)[0, 0].add_(1)
    return x


@form
def view_split(x, y, n):
    a, b = x.unbind()
    a.add_(b)
    for part in x.split(2, 1):
        part.mul_(2)
    c, d = x.chunk(2)
    d.sub_(c)
    return x, a


@form
def view_of_a_view(x, y, n):
    row = x[1]
    piece = row[1:]
    piece += 1
    row.view(3, 1)[2] = 4
    return x, row, piece


@form
def view_complex(x, y, n):
    z = torch.view_as_complex(x[:, :2].contiguous())
    z.mul_(2j)
    z.real.add_(1)
    torch.view_as_real(z)[0, 1] = 7
    return z


@form
def view_expanded(x, y, n):
    x[:1].expand(2, 3).add_(1)
    return x


@form
def view_strided(x, y, n):
    x.as_strided((2, 2), (1, 2)).add_(1)
    return x.as_strided((3,), (1,), 2).mul_(2)


@form
def overlapping_copy(x, y, n):
    x[0].copy_(x[1])
    x[:, 1:] = x[:, :-1].clone()
    x.copy_(x.flip(0))
    return x


@form
def data_changed(x, y, n):
    x.data.add_(1)
    x.detach().mul_(2)
    return x


@form
def data_assigned(x, y, n):
    x.data = y * 2
    return x + 1


@form
def metadata_transposed(x, y, n):
    x.t_()
    x.add_(1)
    return x.shape, x


@form
def metadata_squeezed(x, y, n):
    x.unsqueeze_(0)
    x.mul_(2)
    x.squeeze_()
    return x.shape, x


@form
def metadata_swapped(x, y, n):
    x.swapaxes_(0, 1)
    n.transpose_(0, 1)
    return x, n


@form
def metadata_resized(x, y, n):
    x.resize_(3, 2)
    x.add_(1)
    return x


@form
def metadata_strided(x, y, n):
    x.as_strided_((2, 2), (1, 1))
    return x


@form
def metadata_set(x, y, n):
    x.set_(y * 2)
    return x


@form
def metadata_gradient(x, y, n):
    z = y * 1
    z.requires_grad_(False)
    z.detach_()
    z.add_(1)
    return z


@form
def of_a_list(x, y, n):
    items = [x, y * 1, x[0]]
    for t in items:
        t.add_(1)
    items[0] += 5
    torch._foreach_mul_(items[:2], 2.0)
    return items


@form
def of_foreach(x, y, n):
    z = y * 1
    torch._foreach_add_([x, z], [z, x], alpha=2)
    torch._foreach_lerp_([x], [y], 0.5)
    torch._foreach_copy_([z], [x])
    torch._foreach_zero_([n])
    torch._foreach_sqrt_([z.abs_()])
    return x, z


@form
def of_initializers(x, y, n):
    nn.init.constant_(x, 3.0)
    z = torch.empty(3, 3)
    nn.init.eye_(z)
    nn.init.ones_(z[0])
    w = nn.init.zeros_(torch.empty(2))
    return x, z, w


@form
def of_random_initializers(x, y, n):
    nn.init.normal_(x)
    z = nn.init.xavier_uniform_(torch.empty(3, 3))
    nn.init.kaiming_normal_(z)
    w = nn.init.trunc_normal_(torch.empty(2, 2))
    nn.init.orthogonal_(w)
    return x, z, w


@form
def of_random_numbers(x, y, n):
    x.normal_()
    x[0].uniform_()
    n.random_(0, 5)
    z = torch.empty(3).exponential_()
    z.bernoulli_(0.5)
    return x, z


def numbers(inference: bool) -> tuple[torch.Tensor, ...]:
    """Fresh arguments of a form, made in inference mode or not."""
    with torch.inference_mode(inference):
        x = torch.tensor([[-1.5, 0.5, 2.0], [3.0, -0.25, 0.75]])
        return x, torch.tensor([[1.0, 2.0, 0.5], [3.0, 1.5, 2.5]]), torch.tensor([[1, 4, 2], [7, 5, 9]])


#: context, and whether the arguments were made in inference mode
ORDERS = (
    ((torch.inference_mode, True), (torch.inference_mode, False), (nothing, False), (torch.inference_mode, True)),
    ((nothing, False), (torch.inference_mode, False), (torch.no_grad, True), (torch.inference_mode, True)),
    ((torch.no_grad, False), (torch.inference_mode, True), (torch.no_grad, True), (nothing, False)),
)


def called_within(change: Form, order: int) -> Case:
    """A call in each context of one of the orders."""

    def f(x, y, n):
        made = x + 0
        return change(x, y, n), change(made, y, n.clone()), made

    contexts = ORDERS[order]
    return Case(f, [numbers(inference) for _, inference in contexts], around=[context for context, _ in contexts])


def as_a_block(change: Form) -> Case:
    """What is made before, within and behind the block is changed within it; and again what is the caller's."""

    def f(x, y, n):
        before = x * 1
        with torch.inference_mode():
            results = change(x, y, n), change(before, y, n.clone())
            within = x + y if x.shape == y.shape else y + 1
            last = change(within, y, n.clone())
        behind = y + 1
        change(behind, y, n.clone())
        return results, last, before, within, behind, within.is_inference(), before.is_inference()

    return Case(f, [numbers(inference) for inference in (False, True)])


def as_a_decorator(change: Form) -> Case:
    """Functions that stand in inference mode or under `no_grad`, called from one that does not."""

    @torch.inference_mode()
    def inferred(x, y, n):
        return change(x, y, n), change(y * 1, y, n.clone())

    @torch.no_grad()
    def without(x, y, n):
        return change(x, y, n)

    def f(x, y, n):
        first = inferred(x, y, n)
        return first, without(y + 1, y, n.clone())

    return Case(f, [numbers(inference) for inference in (False, True)])


for _count, (_name, _change) in enumerate(FORMS.items()):
    family.programs[f"{_name}__around"] = functools.partial(called_within, _change, _count % len(ORDERS))
    family.programs[f"{_name}__block"] = functools.partial(as_a_block, _change)
    if _name not in METHODS and not _name.startswith("augmented"):
        family.programs[f"{_name}__decorator"] = functools.partial(as_a_decorator, _change)


class _Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("step", torch.tensor(0))
        self.act = nn.ReLU(inplace=True)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.total += x[0].detach()
        self.step += 1
        y = self.linear(x)
        y += self.total
        y[0] = self.step
        return self.act(y)


def _many(*contexts):
    return [torch.inference_mode if c == "i" else torch.no_grad if c == "n" else nothing for c in contexts]


@family.program
def module_with_running_state() -> Case:
    net = _Running()
    around = _many("i", "i", "p", "n", "i")
    return Case(net, [(torch.randn(2, 3),) for _ in around], around=around, watch=[net])


@family.program
def module_compiled_outside_first() -> Case:
    net = _Running()
    around = _many("p", "i", "p", "n", "n", "i")
    return Case(net, [(torch.randn(2, 3),) for _ in around], around=around, watch=[net])


@family.program
def module_made_in_inference_mode() -> Case:
    with torch.inference_mode():
        net = _Running()
    around = _many("i", "n", "p", "i")
    return Case(net, [(torch.ones(2, 3),) for _ in around], around=around, watch=[net])


@family.program
def residual_network() -> Case:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)

        def forward(self, x):
            out = self.relu(self.norm(self.conv(x)))
            out += x
            return self.relu(out)

    net = nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(32, 2)).eval()
    around = _many("i", "n", "i", "p")
    return Case(net, [(torch.randn(1, 2, 4, 4),) for _ in around], around=around, watch=[net], atol=1e-4)


@family.program
def state_of_a_generator_loop() -> Case:
    def step(total, seen, x, at):
        total += x
        seen[at] = True
        return total.sum()

    with torch.inference_mode():
        total, seen = torch.zeros(2), torch.zeros(3, dtype=torch.bool)
    around = _many("i", "i", "i")
    return Case(step, [(total, seen, torch.ones(2), at) for at in range(3)], around=around)


@family.program
def cache_of_keys_and_values() -> Case:
    keys, values = torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)

    def decode(x, position):
        keys[:, position] = x
        values.index_copy_(1, position, (x * 2)[:, None])
        scores = (x[:, None] @ keys.transpose(1, 2)).masked_fill_(torch.arange(4) > position, float("-inf"))
        return scores.softmax(-1) @ values

    around = _many("i", "i", "n", "i")
    calls = [(torch.randn(1, 2), torch.tensor([at])) for at in range(4)]
    return Case(decode, calls, around=around, watch=[keys, values])


@family.program
def moving_average_of_weights() -> Case:
    net, average = nn.Linear(3, 3), nn.Linear(3, 3)

    @torch.no_grad()
    def update(decay):
        for mean, p in zip(average.parameters(), net.parameters(), strict=True):
            mean.mul_(decay).add_(p, alpha=1 - decay)
            mean.data.lerp_(p.data, 0.1)
        return average.weight * 1

    around = _many("p", "i", "n", "i", "p")
    return Case(update, [(0.9,)] * 5, around=around, watch=[net, average])


@family.program
def inference_tensor_changed_outside() -> Case:
    def f(x):
        with torch.inference_mode():
            y = x * 2
            y += 1
        log = []
        for change in (lambda: y.add_(1), lambda: y[0].mul_(2), lambda: torch.add(y, 1, out=y)):
            try:
                change()
                log.append("done")
            except RuntimeError as error:
                log.append(str(error))
        return y, log, y.is_inference(), x.is_inference()

    return Case(f, [(torch.ones(2),)] * 2)


@family.program
def inference_tensor_needs_a_gradient() -> Case:
    weight = torch.ones(2, requires_grad=True)

    def f(x):
        try:
            return x * weight, None
        except RuntimeError as error:
            return x, str(error)

    with torch.inference_mode():
        x = torch.ones(2)
    return Case(f, [(torch.ones(2),), (x,), (torch.ones(2),), (x,)])


@family.program
def views_made_outside_changed_inside() -> Case:
    def f(x):
        row, flat = x[0], x.view(-1)
        with torch.inference_mode():
            row.add_(1)
            flat[3:] *= 2
            inner = x.t()
            inner[0] = 9
        row.sub_(1)
        return row, flat, x.sum(), inner

    return Case(f, [(torch.arange(6.0).view(2, 3),) for _ in range(3)])


@family.program
def modes_nested() -> Case:
    def f(x):
        with torch.inference_mode():
            y = x * 2
            y += 1
            with torch.inference_mode(False):
                z = torch.zeros(2)
                z[0] = 5
                with torch.enable_grad(), torch.no_grad():
                    z += 1
            y.mul_(z)
        return y, z, y.is_inference(), z.is_inference(), torch.is_inference_mode_enabled()

    around = _many("p", "i", "n", "i")
    return Case(f, [(torch.ones(2),) for _ in around], around=around)


@family.program
def exception_leaves_the_block() -> Case:
    log = torch.zeros(3)

    def f(x, index):
        with torch.inference_mode():
            log[0] += 1
            y = x * 2
            y += log
            y[index] = 7
            log[2] += 1
        return y

    calls = [(torch.ones(3), torch.tensor([at])) for at in (1, 9, 2, 9)]
    return Case(f, calls, watch=[log])


@family.program
def gradients_left_alone() -> Case:
    weight = torch.ones(3, requires_grad=True)

    def f(x):
        y = x * weight
        with torch.inference_mode():
            probe = y * 2
            probe += 1
            weight.data.mul_(1)
        return y, probe.sum().item()

    return Case(f, [(torch.arange(3.0),) for _ in range(3)], backward=True, watch=[weight])


@family.program
def break_between_the_changes() -> Case:
    def f(x):
        y = x * 2
        y += 1
        print("between", y.shape)
        y[0] = 7
        F.relu(y, inplace=True)
        print("again")
        y -= 3
        return y

    around = _many("i", "n", "p", "i")
    return Case(f, [(torch.tensor([-1.0, -2.0, 3.0]),) for _ in around], around=around)


@family.program
def compared_after_the_change() -> Case:
    def f(x):
        before = x.clone()
        x += 1
        if torch.equal(before, x):
            return x * 100
        x[x > 1] = 0
        return x, bool((x == before).any()), float(x.sum())

    around = _many("i", "i", "n", "p")
    return Case(f, [(torch.tensor([0.5, -1.0]),) for _ in around], around=around)


family.warm_only.update(family.programs)
