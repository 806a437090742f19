"""Custom operators in compiled functions: used or not, in order with other effects, on views, inputs and in modes."""

import torch

from integration_tests.harness.differential import Case
from integration_tests.programs.families import nothing
from integration_tests.programs.operators.library import SEEN

OPS = torch.ops.programs
AROUND = (nothing, torch.no_grad, torch.inference_mode)


def _calls(f, *, watch=(), values=(1.0, 2.0, 3.0), around=AROUND, **kwargs) -> Case:
    SEEN.clear()
    calls = [(torch.tensor(values),) for _ in range(len(around) or 3)]
    return Case(f, calls, watch=[SEEN, *watch], around=around, **kwargs)


def nothing_returned() -> Case:
    def f(x):
        OPS.log(x, "first")
        y = x * 2
        OPS.log(y, "second")
        return y

    return _calls(f)


def nothing_returned_and_nothing_else() -> Case:
    def f(x):
        OPS.log(x, "only")

    return _calls(f)


def effects_in_order_with_prints_and_lists() -> Case:
    log: list = []

    def f(x):
        OPS.log(x, "a")
        log.append("a")
        print("seen", x.shape)
        OPS.log(x + 1, "b")
        log.append("b")
        OPS.doubled(x)
        return x + 2

    return _calls(f, watch=[log])


def effects_in_order_with_changes() -> Case:
    def f(x):
        OPS.log(x, "before")
        x.add_(1)
        OPS.log(x, "after")
        OPS.scale_(x, 3.0)
        OPS.log(x, "scaled")
        x[0] = 7
        OPS.log(x[:1], "stored")
        return x.sum()

    return _calls(f)


def result_unused() -> Case:
    def f(x):
        OPS.doubled(x)
        OPS.largest(x)
        OPS.pieces(x)
        return x + 1

    return _calls(f)


def result_used_once() -> Case:
    def f(x):
        kept = OPS.doubled(x)
        dropped = OPS.doubled(x + 1)
        del dropped
        return kept.sin()

    return _calls(f)


def same_call_twice() -> Case:
    def f(x):
        return OPS.doubled(x) + OPS.doubled(x)

    return _calls(f)


def number_returned() -> Case:
    def f(x):
        n = OPS.count_positive(x)
        return x * n, n, OPS.count_positive(-x)

    return _calls(f)


def number_returned_and_unused() -> Case:
    def f(x):
        OPS.count_positive(x)
        return x * 2

    return _calls(f)


def number_that_differs_between_calls() -> Case:
    def f(x):
        if OPS.count_positive(x) > 1:
            return x * 2
        return x - 2

    case = _calls(f, around=())
    case.calls = [(torch.tensor(v),) for v in ([1.0, 2.0], [1.0, -2.0], [-1.0, -2.0], [3.0, 4.0])]
    return case


def tensor_and_number_returned() -> Case:
    def f(x):
        t, top = OPS.largest(x)
        return t * top, top

    return _calls(f)


def list_returned() -> Case:
    def f(x):
        a, b = OPS.pieces(x)
        return torch.cat([b, a * 2])

    return _calls(f)


def input_changed() -> Case:
    def f(x):
        OPS.scale_(x, 2.0)
        return x + 1

    return _calls(f)


def intermediate_changed() -> Case:
    def f(x):
        y = x * 1
        z = y.view(3, 1)
        OPS.scale_(y, 5.0)
        return z, y

    return _calls(f)


def view_changed() -> Case:
    def f(x):
        OPS.scale_(x[1:], 5.0)
        row = x.view(1, 3)
        OPS.scale_(row[:, :2], 2.0)
        return x.sum(), row

    return _calls(f)


def changed_and_returned() -> Case:
    total = torch.zeros(3)

    def f(x):
        y = OPS.add_into(total, x)
        return y + total

    return _calls(f, watch=[total])


def changed_and_unused() -> Case:
    total = torch.zeros(3)

    def f(x):
        OPS.add_into(total, x)
        OPS.add_into(x * 1, x)
        return x * 2

    return _calls(f, watch=[total])


def two_changed() -> Case:
    other = torch.zeros(3)

    def f(x):
        OPS.swap_(x, other)
        return x + other * 2

    return _calls(f, watch=[other])


def two_changed_that_overlap() -> Case:
    def f(x):
        a, b = x[:2], x[1:]
        OPS.swap_(a, b)
        return a, b

    return _calls(f)


def list_changed() -> Case:
    def f(x):
        y = x + 1
        OPS.zero_all_([y, x[:1]])
        return y + x

    return _calls(f)


def optional_changed() -> Case:
    total = torch.zeros(3)

    def f(x):
        y = OPS.maybe_add_(x)
        z = OPS.maybe_add_(y, total)
        OPS.maybe_add_(z, total=total)
        return y + z

    return _calls(f, watch=[total])


def changed_and_returned_as_itself() -> Case:
    def f(x):
        y = OPS.clip_(x, at=1.5)
        y.add_(1)
        return y, y is x

    return _calls(f)


def composite() -> Case:
    def f(x):
        OPS.composed(x)
        return OPS.composed(x - 2)

    return _calls(f)


def without_a_fake() -> Case:
    def f(x):
        y = x * 2
        z = OPS.without_fake(y)
        return z * 2

    return _calls(f)


def random_and_used() -> Case:
    def f(x):
        return OPS.noise(x), torch.rand(2)

    return _calls(f)


def random_and_unused() -> Case:
    def f(x):
        OPS.noise(x)
        return x * 2

    return _calls(f)


def raises_and_used() -> Case:
    log: list = []

    def f(x):
        log.append("before")
        x.sub_(1)
        OPS.log(x, "before")
        y = OPS.positive_only(x)
        log.append("after")
        OPS.log(y, "after")
        return y

    case = _calls(f, watch=[log], around=())
    case.calls = [(torch.tensor(v),) for v in ([5.0, 10.0], [5.0, 1.0], [2.0, 5.0])]
    return case


def raises_and_unused() -> Case:
    log: list = []

    def f(x):
        log.append("before")
        OPS.scale_(x, 2.0)
        OPS.positive_only(x)
        log.append("after")
        return x * 2

    # Not `SEEN`: how often operators note what they do not declare is in `test_undeclared_effects`.
    return Case(f, [(torch.tensor(v),) for v in ([5.0, 10.0], [5.0, -1.0], [2.0, 5.0])], watch=[log])


def raises_and_is_caught() -> Case:
    def f(x):
        OPS.log(x, "once")
        try:
            return OPS.positive_only(x)
        except ValueError as error:
            OPS.log(x, "caught")
            return x, str(error)

    case = _calls(f, around=())
    case.calls = [(torch.tensor(v),) for v in ([5.0, 10.0], [5.0, -1.0], [2.0, 5.0])]
    return case


def gradient_registered() -> Case:
    weight = torch.ones(3, requires_grad=True)

    def f(x):
        OPS.cubed(weight)
        return OPS.cubed(x * weight)

    return _calls(f, around=(), watch=[weight], backward=True)


def gradient_registered_in_modes() -> Case:
    def f(x):
        y = OPS.cubed(x)
        return y, y.requires_grad

    return _calls(f)


def within_a_module() -> Case:
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            OPS.scale_(self.total, 0.5)
            y = OPS.add_into(self.total, x)
            OPS.log(self.total, "total")
            return y

    model = Model()
    return _calls(model, watch=[model])


def within_a_loop() -> Case:
    def f(x):
        for k in range(3):
            OPS.scale_(x, 1.0 + k)
            OPS.log(x, f"step {k}")
            if k == 1:
                OPS.doubled(x)
        return x

    return _calls(f)


def behind_a_break() -> Case:
    def f(x):
        OPS.log(x, "before")
        y = OPS.doubled(x)
        print("break", y.shape)
        OPS.scale_(y, 2.0)
        OPS.log(y, "after")
        return y

    return _calls(f)


def called_by_its_python_name() -> Case:
    from integration_tests.programs.operators import library

    def f(x):
        library.log(x, "by name")
        library.scale_(x, 2.0)
        library.doubled(x)
        return library.add_into(x, x.clone())

    return _calls(f)
