"""Memory that tensors come to share, or no longer share, between calls: inputs, views, numpy arrays and buffers."""

import functools
import sys

import numpy as np
import torch
from torch import nn

from integration_tests.harness.differential import Case
from integration_tests.programs.families import Family, World, setting

family = Family()


def separate():
    return torch.arange(4.0), torch.arange(4.0)


def same():
    x = torch.arange(4.0)
    return x, x


def overlapping():
    base = torch.arange(6.0)
    return base[:4], base[2:]


def detached():
    x = torch.arange(4.0)
    return x, x.detach()


def through_data():
    x = torch.arange(4.0)
    return x, x.data


def through_numpy():
    array = np.arange(6, dtype=np.float32)
    return torch.from_numpy(array[:4]), torch.from_numpy(array[2:])


def through_a_buffer():
    buffer = bytearray(np.arange(6, dtype=np.float32).tobytes())
    return torch.frombuffer(buffer, dtype=torch.float32, count=4), torch.frombuffer(
        buffer, dtype=torch.float32, offset=8
    )


def through_dlpack():
    x = torch.arange(4.0)
    return x, torch.from_dlpack(x)


def interleaved():
    base = torch.arange(8.0)
    return base[::2], base[1::2]


def flipped_views():
    base = torch.arange(4.0).view(2, 2)
    return base.view(4), base.t().as_strided((4,), (1,))


def neighbours():
    base = torch.arange(8.0)
    return base[:4], base[4:]


def as_integers():
    x = torch.arange(4.0)
    return x, x.view(torch.int32)


COMMON = {"separate": separate, "same": same, "overlapping": overlapping, "through_numpy": through_numpy}
RARER = {"through_a_buffer": through_a_buffer, "separate": separate, "interleaved": interleaved}
DETACHED = {"detached": detached, "through_data": through_data, "through_dlpack": through_dlpack, "separate": separate}
VIEWS = {"flipped_views": flipped_views, "neighbours": neighbours, "as_integers": as_integers}


@family.arguments(**COMMON)
def first_changed_second_read(x, y):
    x.add_(1)
    return y * 2


@family.arguments(**COMMON)
def second_changed_first_read(x, y):
    z = x * 2
    y.mul_(3)
    return z, x + 1


@family.arguments(**COMMON)
def both_changed(x, y):
    x.add_(1)
    y.mul_(2)
    x.sub_(y)
    return x + y


@family.arguments(**COMMON)
def item_stored(x, y):
    x[2] = 50.0
    y[0] = y[0] + x[1]
    return x.sum(), y * 1


@family.arguments(**COMMON)
def data_changed(x, y):
    x.data.add_(1)
    y.detach().mul_(2)
    return x * 1, y * 1


@family.arguments(**RARER)
def rarer_ways_first_changed(x, y):
    x.add_(1)
    return y * 2


@family.arguments(**RARER)
def rarer_ways_copied(x, y):
    y.copy_(x.flip(0))
    x.clamp_(max=2)
    return y * 1


@family.arguments(**DETACHED)
def detached_ways_changed(x, y):
    x.add_(1)
    y.mul_(2)
    return x + y, x, y


@family.arguments(**VIEWS)
def views_changed(x, y):
    x.zero_()
    y.add_(1)
    return y.clone(), x.clone()


@family.arguments(**COMMON)
def views_made_inside(x, y):
    front = x[:2]
    front.add_(10)
    back = y.view(2, 2).t()
    back.mul_(2)
    return front, back, x.sum() + y.sum()


@family.arguments(**COMMON)
def copies_that_need_not_be(x, y):
    a, b = x.contiguous(), y.to(torch.float32)
    a.add_(1)
    b.sub_(1)
    return a, b, x.reshape(2, 2)


def _slice(start, stop=None):
    base = torch.arange(8.0)
    return (base[start:stop],)


OFFSETS = {
    "at_two": lambda: _slice(2, 4),
    "at_one": lambda: _slice(1, 3),
    "at_zero": lambda: _slice(0, 2),
}


@family.arguments(**OFFSETS)
def storage_offset_read(x):
    return x * 0 + x.storage_offset(), x.storage_offset()


@family.arguments(**OFFSETS)
def storage_read(x):
    return x + x.untyped_storage().nbytes(), x.as_strided((2,), (1,), 0) * 2


@family.arguments(**OFFSETS)
def strided_from_the_start(x):
    whole = torch.as_strided(x, (8,), (1,), 0)
    whole.add_(1)
    return x * 2


@family.arguments(
    plain=lambda: (torch.arange(4.0),),
    expanded=lambda: (torch.ones(1).expand(4),),
    strided=lambda: (torch.arange(8.0)[::2],),
    fortran=lambda: (torch.arange(8.0).view(2, 4).t()[:, 0],),
)
def strides_of_every_kind(x):
    y = x + 1
    return y, x.stride(), x.is_contiguous(), x.view(-1) if x.is_contiguous() else x.reshape(-1)


@family.arguments(
    plain=lambda: (torch.ones(4),),
    leaf=lambda: (torch.ones(4, requires_grad=True),),
    inner=lambda: (torch.ones(4, requires_grad=True) * 1,),
)
def gradients_asked_for(x):
    y = x * 2
    return y, y.requires_grad, x.is_leaf, (y.detach() + 1).requires_grad


@family.arguments(
    tensor=lambda: (torch.ones(4),), parameter=lambda: (nn.Parameter(torch.ones(4)),), number=lambda: (2.0,)
)
def kinds_of_argument(x):
    return torch.add(torch.arange(4.0), x), type(x).__name__, isinstance(x, nn.Parameter)


THIS = sys.modules[__name__]
ARRAY = np.arange(4, dtype=np.float32)
TENSOR = torch.from_numpy(ARRAY)


@family.holder("through_the_array", "through_the_tensor", "array_replaced")
def tensor_over_an_array() -> World:
    def f(x):
        return x * TENSOR, TENSOR.sum()

    def array():
        ARRAY[:] = 2.0

    def tensor():
        TENSOR.fill_(5)

    def replaced():
        global TENSOR
        TENSOR = torch.from_numpy(np.full(4, 7, dtype=np.float32))

    return World(f, [array, tensor, replaced], lambda: (torch.ones(4),))


@family.holder("two", "five")
def tensor_and_its_array() -> World:
    def f(x):
        TENSOR.add_(1)
        seen = float(ARRAY[0])
        ARRAY[1] = 20.0
        return x * TENSOR, seen, TENSOR.numpy().sum()

    def put(value):
        ARRAY[:] = value

    return World(f, [lambda: put(2.0), lambda: put(5.0)], lambda: (torch.ones(4),), watch=[TENSOR])


@family.holder("own", "of_the_input", "view_of_the_input")
def global_that_shares_with_the_input() -> World:
    inputs = [torch.arange(4.0)]
    held: list = [None]

    def f(x):
        held[0].add_(1)
        y = x * 2
        x.sub_(1)
        return y, held[0] * 1

    def state(make):
        def put():
            inputs[0].copy_(torch.arange(4.0))
            held[0] = make()

        return put

    states = state(lambda: torch.ones(4)), state(lambda: inputs[0]), state(lambda: inputs[0][:2])
    return World(f, states, lambda: (inputs[0],), watch=[held])


@family.holder("whole", "resized", "restrided", "another_type")
def data_swapped() -> World:
    x = torch.arange(4.0)

    def f(t):
        return t * 2, t.shape, t.stride(), t.dtype

    kinds = torch.arange(4.0), torch.arange(6.0), torch.arange(8.0)[::2], torch.arange(4.0).double()
    return World(f, [setting(x, data=kind) for kind in kinds], lambda: (x,))


@family.holder("whole", "shrunk", "grown")
def storage_set() -> World:
    base = torch.arange(8.0)
    x = torch.empty(0)

    def f(t):
        t.add_(1)
        return t * 2, t.storage_offset(), base.sum()

    def state(offset, *shape):
        def put():
            base.copy_(torch.arange(8.0))
            x.set_(base.untyped_storage(), offset, shape)

        return put

    return World(f, [state(0, 8), state(2, 3), state(0, 2, 4)], lambda: (x,), watch=[base])


@family.holder("none", "two", "five")
def attribute_of_a_tensor() -> World:
    x = torch.arange(4.0)

    def f(t):
        t.seen = getattr(t, "tag", 0)
        return t * (t.seen + 1), hasattr(t, "tag")

    def none():
        vars(x).clear()

    return World(f, [none, setting(x, tag=2), setting(x, tag=5)], lambda: (x,), watch=[x])


@family.holder("off", "on")
def gradient_flag_flipped() -> World:
    x = torch.arange(4.0)

    def f(t):
        return t * 2, t.requires_grad, t.sin().requires_grad

    return World(f, [lambda: x.requires_grad_(False), lambda: x.requires_grad_(True)], lambda: (x,))


@family.program
def results_that_were_changed_in_place() -> Case:
    log: list = []
    constant = torch.tensor([1.0, 2.0])

    def f(x):
        out = x + 1, constant * 1, torch.arange(2.0), x.view(2, 1), constant
        log.append(out)
        return out

    def spoil():
        for t in log[-1] if log else ():
            t.add_(5)

    return Case(f, [(torch.ones(2),) for _ in range(4)], before=[spoil] * 4, watch=[log])


@family.program
def results_are_separate() -> Case:
    def f(x):
        y = x * 2
        a, b = y.chunk(2)
        return y, a, b, y.clone(), y[:1], y.detach(), x[1:], x.expand(2, 4)

    return Case(f, [(torch.arange(4.0),) for _ in range(3)])


@family.program
def list_of_tensors_that_share() -> Case:
    def f(items):
        for t in items:
            t.add_(1)
        return [t * 2 for t in items]

    calls = [separate, same, overlapping, through_numpy, separate, neighbours, same]
    return Case(f, [(list(make()),) for make in calls])


@family.program
def three_that_share_in_part() -> Case:
    def f(x, y, z):
        x.add_(1)
        w = z * 2
        y.sub_(w)
        return w, x * y

    def arguments(kind):
        base, other = torch.arange(8.0), torch.arange(8.0)
        table = {
            "none": (base[:4], other[:4], torch.ones(4)),
            "first_two": (base[:4], base[2:6], other[:4]),
            "ends": (base[:4], other[:4], base[1:5]),
            "all": (base[:4], base[2:6], base[4:]),
        }
        return table[kind]

    return Case(f, [arguments(kind) for kind in ("none", "first_two", "ends", "all", "none", "ends", "first_two")])


@family.program
def outputs_stored_and_aliased_next_time() -> Case:
    held: dict = {}

    def f(x):
        before = held.get("last", x)
        x.add_(1)
        held["last"] = x[:2] if held.get("flip") else x
        return before * 2

    x, y = torch.arange(4.0), torch.arange(2.0)
    steps = [functools.partial(held.__setitem__, "flip", flip) for flip in (False, True, True, False, False)]
    return Case(f, [(t,) for t in (x, x, y, y, x)], before=steps, watch=[held])
