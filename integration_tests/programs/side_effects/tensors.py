"""Operations on a tensor beside computation: attributes of the user's, `.grad`, flags, `.data`, names."""

import torch
from torch import nn

from integration_tests.programs.side_effects.operations import Holder, Operation, attempt, family_of


def tag(c, x):
    c.tag = "tagged"
    return c.tag


def keep_a_result(c, x):
    c.kept = x * 2
    return c.kept + 1


def keep_an_input(c, x):
    c.kept = x
    return c.kept is x


def count(c, x):
    c.n = getattr(c, "n", 0) + 1
    return x * c.n


def set_and_delete(c, x):
    c.mark = 1
    del c.mark
    return hasattr(c, "mark")


def delete_what_is_there(c, x):
    seen = hasattr(c, "turn")
    if seen:
        del c.turn
    else:
        c.turn = x.sum()
    return seen, hasattr(c, "turn")


def delete_nothing(c, x):
    del c.nothing


def read_nothing(c, x):
    return c.nothing


def by_builtins(c, x):
    setattr(c, "one", 1)
    setattr(c, "two", 2)
    delattr(c, "one")
    return getattr(c, "one", None), getattr(c, "two")


def by_object(c, x):
    object.__setattr__(c, "raw", x.shape[0])
    return object.__getattribute__(c, "raw")


def by_tensor_dict(c, x):
    c.here = 1
    c.__dict__["there"] = 2
    return c.there, sorted(vars(c))


def reorder(c, x):
    c.first = 1
    c.second = 2
    del c.first
    c.first = 3
    return list(c.__dict__)


def keep_itself(c, x):
    c.me = c
    same = c.me is c
    del c.me
    return same


def keep_a_container(c, x):
    if not hasattr(c, "seen"):
        c.seen = []
    c.seen.append(x.shape[0])
    return len(c.seen)


def keep_an_object(c, x):
    c.info = Info(x + 1)
    c.info.n += 1
    return c.info.n


class Info:
    def __init__(self, value):
        self.value = value
        self.n = 0


def change_what_is_kept(c, x):
    c.kept = x.clone()
    c.kept.add_(1)
    c.kept.note = "changed"
    return c.kept


def on_a_result(c, x):
    y = c * x
    y.tag = "result"
    z = y
    z.n = 1
    return y, y.n


def on_what_changes_in_place(c, x):
    y = c * x
    z = y.add_(1)
    z.tag = 2
    return y.tag, {"y": y}, y is z


def on_the_very_same(c, x):
    same = [c.contiguous(), c.float(), c.to(torch.float32), c.expand_as(c), c.requires_grad_(c.requires_grad), c.cpu()]
    for n, t in enumerate(same):
        t.n = n
    return c.n, [t is c for t in same], [t.n for t in same]


def on_the_same_result(c, x):
    y = c * x
    same = [y.contiguous(), y.float(), y.relu_(), torch.add(y, 1, out=y) if not y.requires_grad else y, +y]
    for n, t in enumerate(same):
        t.n = n
    return y.n, [t is y for t in same], same


def reorder_by_names(c, x):
    c.first_mark = 1
    c.second_mark = 2
    del c.first_mark
    c.first_mark = 3


def hide_by_builtins(c, x):
    c.short = 5
    return c.short


def hide_and_call(c, x):
    c.double = lambda: 7
    return c.double() * x


def a_flag_for_the_compiler(c, x):
    c._is_initialized = True
    return getattr(c, "_is_initialized", False), getattr(x, "_is_initialized", False)


def on_a_view(c, x):
    view = c.view(-1)
    view.tag = 1
    return hasattr(c, "tag"), view


def on_a_result_nobody_has(c, x):
    y = c * x
    y.tag = [1]
    return y.tag


def on_the_other(c, x):
    x.tag = c
    return x.tag is c


def read_grad(c, x):
    return c.grad


def set_grad(c, x):
    c.grad = c.detach() * 3
    return c.grad + 1


def set_grad_to_none(c, x):
    c.grad = None
    return c.grad is None


def delete_grad(c, x):
    c.grad = torch.ones_like(c)
    del c.grad
    return c.grad


def add_to_grad(c, x):
    if c.grad is None:
        c.grad = torch.zeros_like(c)
    c.grad += x.sum()
    return c.grad.clone()


def grad_is_one_object(c, x):
    g = x.sum().reshape(1)
    c.grad = g
    g.mul_(2)
    return c.grad is g, c.grad


def grad_by_detach(c, x):
    c.grad = torch.full_like(c, 2.0)
    c.detach().grad = torch.zeros_like(c)
    return c.grad


def grad_of_another_shape(c, x):
    c.grad = torch.ones(7)


def grad_of_another_dtype(c, x):
    c.grad = torch.ones(1, dtype=torch.int64)


def grad_that_is_none_of_tensors(c, x):
    c.grad = 3


def grad_that_is_itself(c, x):
    c.grad = c


def grad_of_a_result(c, x):
    y = x * 2
    y.grad = torch.ones_like(y)
    return y.grad + y, y


def grad_kept_by_two(c, x):
    g = torch.ones_like(c)
    c.grad = g
    c.old_grad = c.grad
    c.grad = None
    return c.old_grad is g, c.grad


def swap_grad(c, x):
    old = c.grad
    c.grad = torch.ones_like(c) if old is None else old * 2
    return old, c.grad


def tag_on_grad(c, x):
    c.grad = torch.ones_like(c)
    c.grad.tag = "of grad"
    return c.grad.tag


def by_setattr_grad(c, x):
    setattr(c, "grad", torch.ones_like(c))
    return getattr(c, "grad")


def require_grad(c, x):
    before = c.requires_grad
    c.requires_grad_()
    return before, c.requires_grad, (c * x).requires_grad


def require_none(c, x):
    c.requires_grad_(False)
    return c.requires_grad, (c * x).requires_grad


def toggle(c, x):
    c.requires_grad = not c.requires_grad
    return c.requires_grad, c.is_leaf, c * x


def same_flag(c, x):
    c.requires_grad_(c.requires_grad)
    c.requires_grad = c.requires_grad
    return c * x


def flag_of_detached(c, x):
    d = c.detach()
    d.requires_grad_()
    return c.requires_grad, (d * x).requires_grad, d


def flag_of_a_result(c, x):
    y = x * 2
    y.requires_grad = True
    return y * 3, y.is_leaf


def flag_of_numbers(c, x):
    torch.ones(2, dtype=torch.int64).requires_grad_()


def flag_of_no_leaf(c, x):
    y = c.detach().clone().requires_grad_() * 2
    y.requires_grad = False


def detach_in_place(c, x):
    y = c * x
    y.detach_()
    y.tag = 1
    return y.requires_grad, y.is_leaf, y


def set_data(c, x):
    c.data = c.data + 1
    return c * x


def data_changed_in_place(c, x):
    c.data.mul_(2)
    return c * x


def data_left_behind(c, x):
    before = c.detach()
    c.data = torch.zeros(1)
    return before, c


def data_of_another_shape(c, x):
    y = c.detach().clone()
    y.data = x.detach()
    return y.shape, y


def name_dimensions(c, x):
    names = c.names
    c.names = None
    return names


def write_to_metadata(c, x):
    c.shape = 3


def write_to_flags(c, x):
    c.is_leaf = False


def hide_a_method(c, x):
    c.sum = 3
    seen = c.sum
    del c.sum
    return seen, c.sum()


def hide_a_method_on_a_result(c, x):
    y = x + 1
    y.double_it = lambda: 5
    return y.double_it()


def retain(c, x):
    y = c * x
    y.retain_grad()
    return y.retains_grad, y.grad


ATTRIBUTES: dict[str, Operation] = {
    op.__name__: op
    for op in (
        tag, keep_a_result, keep_an_input, count, set_and_delete, delete_what_is_there, by_builtins, by_object,
        by_tensor_dict, reorder, keep_itself, keep_a_container, keep_an_object, change_what_is_kept, on_a_result,
        on_what_changes_in_place, on_a_view, on_the_very_same, on_the_same_result, reorder_by_names, hide_by_builtins,
        hide_and_call, a_flag_for_the_compiler, on_a_result_nobody_has, on_the_other, hide_a_method,
        hide_a_method_on_a_result,
    )
} | {
    "delete_nothing": lambda c, x: attempt(delete_nothing, c, x),
    "read_nothing": lambda c, x: attempt(read_nothing, c, x),
}  # fmt: skip
GRADS: dict[str, Operation] = {
    op.__name__: op
    for op in (
        read_grad, set_grad, set_grad_to_none, delete_grad, add_to_grad, grad_is_one_object, grad_by_detach,
        grad_of_a_result, grad_kept_by_two, swap_grad, tag_on_grad, by_setattr_grad,
    )
} | {
    op.__name__: lambda c, x, op=op: attempt(op, c, x)
    for op in (
        grad_of_another_shape, grad_of_another_dtype, grad_that_is_none_of_tensors, grad_that_is_itself,
    )
}  # fmt: skip
FLAGS: dict[str, Operation] = {
    op.__name__: op
    for op in (
        require_grad, require_none, toggle, same_flag, flag_of_detached, flag_of_a_result, detach_in_place, set_data,
        data_changed_in_place, data_left_behind, data_of_another_shape, name_dimensions, retain,
    )
} | {
    op.__name__: lambda c, x, op=op: attempt(op, c, x)
    for op in (flag_of_numbers, flag_of_no_leaf, write_to_metadata, write_to_flags, retain)
}  # fmt: skip


def weight() -> nn.Parameter:
    return nn.Parameter(torch.tensor([2.0]))


def buffer() -> torch.Tensor:
    return torch.tensor([2.0])


def with_grad() -> torch.Tensor:
    leaf = torch.tensor([2.0], requires_grad=True)
    leaf.grad = torch.tensor([5.0])
    return leaf


HOLDERS = {
    "parameter": Holder(weight, ATTRIBUTES | GRADS | FLAGS),
    "buffer": Holder(buffer, ATTRIBUTES | GRADS | FLAGS),
    "leaf_with_grad": Holder(with_grad, GRADS),
}
family = family_of(HOLDERS)
