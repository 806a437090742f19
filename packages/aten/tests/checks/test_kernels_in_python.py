"""Kernels written in Python that run while a call is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from framesmith_aten.checks.kernels_in_python import runs_while_traced

LIB = torch.library.Library("framesmith_kernels", "FRAGMENT")


def operator(name: str, *keys: str) -> Any:
    LIB.define(f"{name}(Tensor x) -> Tensor")
    for key in keys:
        LIB.impl(name, torch.clone if key != "Meta" else torch.empty_like, key)
    return getattr(torch.ops.framesmith_kernels, name).default


def custom(name: str, *, with_fake: bool) -> Any:
    @torch.library.custom_op(f"framesmith_kernels::{name}", mutates_args=())
    def made(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    if with_fake:
        made.register_fake(torch.empty_like)
    made.register_autograd(lambda ctx, grad: grad)
    return made._opoverload


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: operator("composite", "CompositeImplicitAutograd"), True),
        (lambda: operator("for_autograd", "AutogradCPU", "CPU"), True),
        (lambda: operator("for_all", "CompositeExplicitAutograd"), True),
        (lambda: operator("for_all_with_meta", "CompositeExplicitAutograd", "Meta"), False),
        (lambda: operator("for_the_cpu", "CPU"), False),
        (lambda: custom("with_fake", with_fake=True), False),
        (lambda: custom("without_fake", with_fake=False), False),
        (lambda: torch.ops.aten.sin.default, False),
        (lambda: torch.ops.aten.linear.default, False),
    ],
)
def test_kernels(make: Callable[[], Any], expected: bool) -> None:
    assert runs_while_traced(make()) is expected


def test_a_fake_registered_later_serves_from_then_on() -> None:
    op = operator("fake_later", "CompositeExplicitAutograd")
    assert runs_while_traced(op)
    torch.library.register_fake("framesmith_kernels::fake_later", torch.empty_like, lib=LIB)
    assert not runs_while_traced(op)
