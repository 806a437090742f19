"""Control flow for random programs: the functions of torch, and loops and branches of the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops import map as mapped

Tensor = torch.Tensor


def plain_cond(condition: Tensor, when_true: Callable[..., Any], when_false: Callable[..., Any], operands: Any) -> Any:
    return (when_true if condition else when_false)(*operands)


def plain_while_loop(holds: Callable[..., Any], body: Callable[..., Any], carried: Any) -> Any:
    while holds(*carried):
        carried = body(*carried)
    return carried


def plain_scan(body: Callable[..., Any], carried: Tensor, xs: Tensor, *, reverse: bool = False) -> Any:
    given = []
    for x in reversed(xs.unbind()) if reverse else xs.unbind():
        carried, one = body(carried, x)
        given.append(one)
    return carried, torch.stack(given[::-1] if reverse else given)


def plain_associative_scan(join: Callable[..., Any], xs: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    found: list[Tensor] = []
    for x in reversed(xs.unbind(dim)) if reverse else xs.unbind(dim):
        found.append(join(found[-1], x) if found else x)
    return torch.stack(found[::-1] if reverse else found, dim)


def plain_map(body: Callable[..., Any], xs: Tensor, *captured: Any) -> Tensor:
    return torch.stack([body(x, *captured) for x in xs.unbind()])


def in_order(join: Callable[..., Any], xs: Tensor, dim: int, *, reverse: bool = False) -> Any:
    return associative_scan(join, xs, dim, reverse=reverse, combine_mode="generic")


def plain_region(body: Callable[..., Any], x: Tensor) -> Any:
    return body(x)


PLAIN = {
    "cond": plain_cond,
    "while_loop": plain_while_loop,
    "scan": plain_scan,
    "associative_scan": plain_associative_scan,
    "mapped": plain_map,
    "region": plain_region,
}
TORCH = {
    "cond": torch.cond,
    "while_loop": torch.while_loop,
    "scan": scan,
    "associative_scan": in_order,
    "mapped": mapped,
    "region": torch.compiler.nested_compile_region(plain_region),
}
