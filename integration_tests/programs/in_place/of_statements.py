"""Forms that change `x` or `n` by statements: augmented assignments, stores, `out=`, views, metadata, lists."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Form = Callable[..., Any]
STATEMENTS: dict[str, Form] = {}


def form(fn: Form) -> Form:
    """Register a form under its own name."""
    STATEMENTS[fn.__name__] = fn
    return fn


def _whole(update: Form) -> Form:
    return lambda x, y, n: update(n, y.to(torch.int64))


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"):
    STATEMENTS[f"augmented_{_name}_tensor"] = lambda x, y, n, op=getattr(operator, _name): op(x, y)
    STATEMENTS[f"augmented_{_name}_number"] = lambda x, y, n, op=getattr(operator, _name): op(x, 2)
for _name in ("iand", "ior", "ixor", "ilshift", "irshift"):
    STATEMENTS[f"augmented_{_name}_whole"] = _whole(getattr(operator, _name))


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
def statement_matmul(x, y, n):
    m = x @ y.t()
    same = m
    m @= m
    m += 1
    return m, same


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
