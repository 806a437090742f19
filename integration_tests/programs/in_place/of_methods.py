"""Forms that change `x` or `n` by one in-place method of a tensor, or function of torch."""

import functools
from collections.abc import Callable
from typing import Any

import torch

INDEX = torch.tensor([1, 0])
COLUMNS = torch.tensor([[0, 2, 1], [1, 1, 0]])
MASK = torch.tensor([[True, False, True], [False, False, True]])

#: method -> its arguments, given (x, y, n); "x" or "n" in front of the name says which of them it changes.
CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "x.add_": lambda x, y, n: (y,),
    "x.sub_": lambda x, y, n: (2,),
    "x.mul_": lambda x, y, n: (y,),
    "x.div_": lambda x, y, n: (y,),
    "x.floor_divide_": lambda x, y, n: (y,),
    "x.remainder_": lambda x, y, n: (2,),
    "x.fmod_": lambda x, y, n: (y,),
    "x.pow_": lambda x, y, n: (2,),
    "x.copy_": lambda x, y, n: (y[0],),
    "x.fill_": lambda x, y, n: (3,),
    "x.zero_": lambda x, y, n: (),
    "x.neg_": lambda x, y, n: (),
    "x.abs_": lambda x, y, n: (),
    "x.exp_": lambda x, y, n: (),
    "x.sigmoid_": lambda x, y, n: (),
    "x.tanh_": lambda x, y, n: (),
    "x.relu_": lambda x, y, n: (),
    "x.round_": lambda x, y, n: (),
    "x.sign_": lambda x, y, n: (),
    "x.reciprocal_": lambda x, y, n: (),
    "x.nan_to_num_": lambda x, y, n: (0.0,),
    "x.clamp_": lambda x, y, n: (-1, 1),
    "x.clamp_min_": lambda x, y, n: (0.1,),
    "x.lerp_": lambda x, y, n: (y, 0.25),
    "x.addcmul_": lambda x, y, n: (y, y),
    "x.addcdiv_": lambda x, y, n: (y, y + 1),
    "x.addr_": lambda x, y, n: (y[:, 0], y[0]),
    "x.addmm_": lambda x, y, n: (y[:, :2], y),
    "x.atan2_": lambda x, y, n: (y,),
    "x.hypot_": lambda x, y, n: (y,),
    "x.cumsum_": lambda x, y, n: (1,),
    "x.cumprod_": lambda x, y, n: (0,),
    "x.triu_": lambda x, y, n: (),
    "x.tril_": lambda x, y, n: (-1,),
    "x.fill_diagonal_": lambda x, y, n: (5,),
    "x.renorm_": lambda x, y, n: (2, 0, 1.0),
    "x.masked_fill_": lambda x, y, n: (MASK, -1.0),
    "x.masked_scatter_": lambda x, y, n: (MASK, y),
    "x.index_add_": lambda x, y, n: (0, INDEX, y),
    "x.index_copy_": lambda x, y, n: (0, INDEX, y),
    "x.index_fill_": lambda x, y, n: (1, INDEX, 4.0),
    "x.index_put_": lambda x, y, n: ((INDEX, INDEX), y[0, :2]),
    "x.index_reduce_": lambda x, y, n: (0, INDEX, y, "amax"),
    "x.scatter_": lambda x, y, n: (1, COLUMNS, y),
    "x.scatter_add_": lambda x, y, n: (1, COLUMNS, y),
    "x.scatter_reduce_": lambda x, y, n: (1, COLUMNS, y, "amin"),
    "x.put_": lambda x, y, n: (torch.tensor([0, 4]), torch.tensor([8.0, 9.0])),
    "x.gt_": lambda x, y, n: (y,),
    "x.eq_": lambda x, y, n: (0.5,),
    "x.logical_not_": lambda x, y, n: (),
    "n.bitwise_and_": lambda x, y, n: (5,),
    "n.bitwise_not_": lambda x, y, n: (),
    "n.bitwise_left_shift_": lambda x, y, n: (1,),
    "n.gcd_": lambda x, y, n: (torch.tensor(6),),
    "n.clamp_max_": lambda x, y, n: (4,),
    "n.sub_": lambda x, y, n: (n,),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch_relu_": lambda x, y, n: torch.relu_(x),
    "torch_sigmoid_": lambda x, y, n: torch.sigmoid_(x),
    "torch_clamp_": lambda x, y, n: torch.clamp_(x, 0, 1),
    "torch_fill_": lambda x, y, n: torch.fill_(x, 2),
    "torch_zero_": lambda x, y, n: torch.zero_(n),
    "torch_index_put_": lambda x, y, n: torch.index_put_(x, (INDEX,), y[0]),
    "torch_neg_": lambda x, y, n: torch.neg_(x),
    "torch_square_": lambda x, y, n: torch.square_(x),
    "torch_addmv_": lambda x, y, n: torch.addmv_(x[0], y.t(), y[:, 0]),
    "torch_threshold_": lambda x, y, n: torch.threshold_(x, 0.5, 9.0),
    "aten_add_": lambda x, y, n: torch.ops.aten.add_(x, y),
    "aten_copy_": lambda x, y, n: torch.ops.aten.copy_.default(x, y),
}


def by_method(method: str, arguments: Callable[..., tuple[Any, ...]], x: Any, y: Any, n: Any) -> Any:
    """Change `x` or `n` by a method; the result is what the method returns, and whether it is what was changed."""
    changed = x if method[0] == "x" else n
    result = getattr(changed, method[2:])(*arguments(x, y, n))
    return result, result is changed


METHODS: dict[str, Callable[..., Any]] = {
    f"method_{name[2:].rstrip('_')}_{name[0]}": functools.partial(by_method, name, arguments)
    for name, arguments in CALLS.items()
} | {f"function_{name}": function for name, function in FUNCTIONS.items()}
