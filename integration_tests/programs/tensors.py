"""Tensors: views and in-place work, autograd modes, random numbers, dtypes and strides."""

import torch
import torch.nn.functional as F
from torch import nn

from integration_tests.harness.differential import Case


def _calls(f, n: int = 3, shape=(2, 3), **kw) -> Case:
    return Case(f, [(torch.randn(shape),) for _ in range(n)], **kw)


def grad_modes() -> Case:
    w = torch.ones(3, requires_grad=True)

    @torch.no_grad()
    def frozen(x):
        return x * w, torch.is_grad_enabled()

    def f(x):
        a = x * w
        with torch.no_grad():
            b = x * w
            with torch.enable_grad():
                c = x * w
            d = torch.is_grad_enabled()
        e, g = frozen(x)
        with torch.inference_mode():
            h = (x * 2).is_inference()
        with torch.set_grad_enabled(False):
            i = (x * w).requires_grad
        return a, b.requires_grad, c, d, e.requires_grad, g, h, i, a.detach(), torch.is_grad_enabled()

    return _calls(f, watch=[w], backward=True)


def in_place_on_views() -> Case:
    def f(x):
        v = x[0]
        v.add_(1)
        x.t()[1].mul_(2)
        w = x.view(-1)
        w[0] = 5
        x[:, 1] += 10
        x[x.shape[0] - 1, :2] = v[:2] * 2
        y = x.clone()
        y.transpose_(0, 1)
        z = y.unsqueeze(0).squeeze_(0)
        z += 1
        return v, w, y, z is y, y.shape, x.diagonal().sum()

    return _calls(f)


def aliases_returned() -> Case:
    def f(x):
        y = x + 1
        return x, x.view(-1), x[0], y, y.t(), y.view(-1)[1:], (x, [x]), y

    return _calls(f)


def argument_rebound() -> Case:
    def f(x, items):
        x = x + 1
        items[0] = x
        x += 1
        items.append(x)
        return x, items

    return Case(f, [(torch.zeros(2), [0]), (torch.zeros(2), [0, 1])])


def random_numbers_in_order() -> Case:
    def f(x):
        a = torch.rand(2)
        y = F.dropout(x, 0.5)
        print("here")
        b = torch.randn(2, 2)
        c = torch.randint(0, 10, (3,))
        d = x.clone().uniform_()
        torch.rand(3)
        e = torch.randperm(4)
        return a, y, b, c, d, e, torch.bernoulli(torch.full((3,), 0.5)), F.dropout(x, 0.0), torch.rand_like(x)

    return _calls(f)


def seeds_inside() -> Case:
    def f(x):
        a = torch.rand(2)
        torch.manual_seed(5)
        b = torch.rand(2)
        state = torch.get_rng_state()
        c = torch.rand(2)
        torch.set_rng_state(state)
        return a, b, c, torch.rand(2), x

    return _calls(f)


def dtypes() -> Case:
    def f(x, n):
        i = n + 1
        return (
            x * 2,
            x * True,
            n * 2.5,
            n / 2,
            n // 2,
            i % 3,
            x.double() + x,
            x.half() * 2,
            x.bool(),
            (x > 0) + 1,
            n.sum(),
            (x > 0).sum(),
            x.sum(dtype=torch.float64),
            torch.tensor(3) * x,
            torch.tensor(3.0, dtype=torch.float64) * x,
            n.float().mean(),
            x.to(torch.bfloat16),
            n**2,
            torch.where(x > 0, 1, 0),
            torch.where(x > 0, x, 1.0),
            x.new_zeros(2),
            torch.ones(2, dtype=torch.int8) + 100 + 100,
            -n.to(torch.uint8),
            ~n,
            n >> 1,
            n.bool() | True,
        )

    return Case(f, [(torch.randn(3), torch.tensor([-3, 4, 7]))] * 2, rtol=1e-2, atol=1e-2)


def strides() -> Case:
    def f(x):
        t = x.permute(2, 0, 1)
        return (
            t + 1,
            t * t.contiguous(),
            t.relu(),
            torch.cat([t, t]),
            t.clone(),
            t.reshape(-1),
            torch.empty_like(t).fill_(1),
            t.expand(3, *t.shape[1:]) if t.shape[0] == 1 else t,
            t.sum(0, keepdim=True),
            t.to(torch.float64),
            torch.where(t > 0, t, t),
            t.contiguous(),
            torch.stack([t, t], -1),
            t.flip(0),
            t.roll(1),
            torch.zeros_like(t),
        )

    return Case(f, [(torch.randn(2, 3, 4),)] * 2)


def channels_last() -> Case:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    norm = nn.BatchNorm2d(4)

    def f(x):
        y = norm(conv(x))
        return y.relu(), y.mean((2, 3)), F.max_pool2d(y, 2), F.interpolate(y, scale_factor=2), y.is_contiguous()

    x = torch.randn(2, 3, 6, 6)
    return Case(f, [(x,), (x.to(memory_format=torch.channels_last),)], watch=[norm], rtol=1e-4, atol=1e-4)


def special_values() -> Case:
    def f(x):
        return (
            x.max(),
            x.min(),
            x.argmax(),
            x.sort().values,
            x.clamp(0, 1),
            x.relu(),
            x.sign(),
            x.round(),
            x.isnan(),
            torch.maximum(x, torch.zeros(())),
            x.nan_to_num(),
            x.sum(),
            x.mean(),
            F.softmax(x, 0),
            x == x,
            x.abs(),
            x.exp(),
            x.cumsum(0),
            x.topk(2).values,
            torch.sign(-x),
            x.floor(),
            x.prod(),
            F.silu(x.nan_to_num(0, 5, -5)),
            torch.tanh(x),
            x.sigmoid(),
            x.pow(2),
            x.pow(0.5),
            x.log1p(),
            x % 2,
            x // 2,
            torch.fmod(x, 2),
            x.amax(),
            x.any(),
            x.logsumexp(0),
        )

    nan, inf = float("nan"), float("inf")
    return Case(f, [(torch.tensor([1.5, -0.0, 0.5, inf, -2.5]),), (torch.tensor([nan, -inf, 2.5, 0.0, 1e-40]),)])


def empty_and_scalar() -> Case:
    def f(x):
        y = x[:0]
        return y + 1, y.sum(), y.sum(0), torch.cat([y, x]), x.sum() * 2, x.sum()[None], y.shape, y.view(-1), x.prod(0)

    return _calls(f)


def gradients_through_views() -> Case:
    def f(x):
        y = x * 2
        y[0] = y[1] * 3
        z = y.view(-1)
        z[1:3].mul_(2)
        return y.sum() + z[0], y, z

    return Case(f, [(torch.randn(2, 3, requires_grad=True),)] * 2, backward=True)


def leaf_and_detached() -> Case:
    w = nn.Parameter(torch.ones(3))

    def f(x):
        y = (x * w).detach()
        z = x * w.data
        q = (x * w).requires_grad_(True) if False else x * w
        with torch.no_grad():
            w.add_(1)
            w[0] = 5
        return y, z, q * 1, w.sum()

    return _calls(f, watch=[w])


def module_in_train_and_eval() -> Case:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LayerNorm(4))

    def f(x, training):
        model.train(training)
        return model(x), model[1].training

    x = torch.randn(4, 3)
    return Case(f, [(x, True), (x, False), (x, True)], watch=[model])


def instance_norm_with_statistics() -> Case:
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)

    def f(x, training):
        norm.train(training)
        return norm(x) * 2

    x = torch.randn(2, 3, 5)
    return Case(f, [(x, True), (x, True), (x, False)], watch=[norm], backward=True)


def autograd_functions() -> Case:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 5 + x * 0

    def f(x):
        return Double.apply(x + 1) * 3

    return Case(f, [(torch.randn(2, 3, requires_grad=True),)] * 2, backward=True)


def tensor_attributes() -> Case:
    def f(x):
        x.tag = getattr(x, "tag", 0) + 1
        y = x * x.tag
        y.name_of_mine = "y"
        return y, x.tag, y.name_of_mine, hasattr(y, "nothing")

    x = torch.ones(2)
    return Case(f, [(x,), (x,), (torch.ones(2),)])


def data_dependent_control_flow() -> Case:
    def f(x):
        steps = 0
        while x.sum() < 10:
            x = x * 2 + 1
            steps += 1
            if steps > 20 or x.max().item() > 100:
                break
        return x, steps, x.tolist(), float(x.sum()), int(x.numel()), bool(x.any())

    return Case(f, [(torch.ones(2),), (torch.full((2,), 20.0),), (-torch.ones(2),)])


def masks_and_dynamic_shapes() -> Case:
    def f(x):
        y = x[x > 0]
        x[x < 0] = 0
        n = x.nonzero()
        return y, x, n, y.shape[0] * 2, torch.unique(x.round()), x.masked_select(x > 1)

    return _calls(f)


def numpy_in_both_directions() -> Case:
    def f(x):
        array = (x * 2).numpy()
        array[0] = 7
        y = torch.from_numpy(array) + 1
        return y, array.sum().item()

    return _calls(f)


def autocast() -> Case:
    layer = nn.Linear(3, 3)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = layer(x)
            with torch.autocast("cpu", enabled=False):
                b = layer(x)
            c = F.softmax(a, -1)
        return a.dtype, b.dtype, c.dtype, layer(x)

    return _calls(f)


def results_written_to_given_tensors() -> Case:
    def f(x, out):
        torch.add(x, 1, out=out)
        same = torch.mul(out, 2, out=out)
        return out.shape, same is out

    return Case(
        f, [(torch.randn(3), torch.zeros(3)), (torch.randn(3), torch.zeros(0)), (torch.randn(3), torch.zeros(3))]
    )


def data_and_detach() -> Case:
    def f(x):
        y = x * 2
        a, b, c = x.data, x.detach(), y.data
        return a, a is x, b, c, c is y, y

    def g(x):
        r = f(x)
        d = x.detach()
        d.add_(1)
        return r, d, x.data

    return Case(g, [(torch.ones(2, requires_grad=True),), (torch.ones(2),)])
