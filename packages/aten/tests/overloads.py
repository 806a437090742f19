"""The rows of the table, and the overloads of the operators they are about."""

from __future__ import annotations

import torch

from framesmith_aten.table import TABLE

ROWS = sorted(TABLE)


def overloads(name):
    """The operator's overloads, in place ones too."""
    packets = [getattr(torch.ops.aten, form) for form in (name, f"{name}_") if hasattr(torch.ops.aten, form)]
    names = {n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names()}
    return [
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if (packet.__name__ if overload == "default" else f"{packet.__name__}.{overload}") in names
    ]
