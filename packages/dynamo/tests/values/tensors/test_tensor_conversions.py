"""Conversions of tensors to numbers, by their special methods and by C code."""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import pytest
import torch
from driver import compiled

import framesmith_frames as frames

X = torch.arange(3.0)
TENSORS = [
    torch.tensor(1), torch.tensor(1.5), torch.tensor(True), torch.tensor(1 + 2j), torch.tensor([1, 2]),
    torch.tensor([1.5, 2.5]),
    torch.ones(0), torch.ones(1, 1, dtype=torch.int64), torch.tensor(2.0, dtype=torch.bfloat16),
]  # fmt: skip
ASKED = [
    "t.__index__()", "t.__int__()", "t.__float__()", "t.__bool__()", "t.__complex__()", "t.__len__()",
    "t.__contains__(1)", "t.__len__(1)",
    "t.__round__()", "operator.index(t)", "int(t)", "float(t)", "bool(t)", "complex(t)", "len(t)", "abs(t)",
    "list(range(t))",
    "[10, 20, 30][t]", "[10, 20, 30][t:]", "(1, 2, 3)[t]", "'abc'[t]", "hex(t)", "bin(t)", "chr(t)", "'ab' * t",
    "[1] * t", "1 in t",
    "math.sqrt(t)", "math.floor(t)", "f'{t:.3f}'", "'%d' % t", "divmod(t, 2)", "pow(2, t, 3)", "t.__eq__('a')",
    "t.__lt__('a')",
    "t.__add__('a')", "t.__getitem__('a')", "t.__getattribute__(5)", "t.__setattr__(5, 6)", "[0, 1, 2].pop(t)",
    "'abc'.center(t)", "slice(t).indices(5)",
    "(1).__add__(t)", "int.__index__(t)", "not t", "1 if t else 2", "x[t]", "x[t:]", "torch.zeros(t)",
    "math.gcd(t, 4)", "int(t, 10)",
]  # fmt: skip


def shown(answer: Any) -> str:
    return re.sub("0x[0-9a-f]+", "0x", repr(answer))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", ASKED)
def test_asked_as_eager_asks(text: str) -> None:
    names: dict[str, Any] = {"torch": torch, "math": math, "operator": operator}
    exec(
        f"def f(x, t):\n    x = x + 1\n    try: return x, {text}\n    except Exception as e: return x, type(e), str(e)",
        names,
    )
    for t in TENSORS:
        frames.reset()
        subject = compiled(names["f"])
        assert shown(subject(X, t)) == shown(names["f"](X, t)), t
