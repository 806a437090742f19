"""Torch's operator database through `aot_function`, beside eager mode.

`python capture/op_db.py PATTERN [LIMIT]` prints what is refused and what differs, by operator.
"""

from __future__ import annotations

import collections
import fnmatch
import itertools
import sys
import warnings
from pathlib import Path

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness import compare, compare_gradients
from op_samples import OPS

from framesmith_aot import AotUnsupported
from framesmith_aot.capture.functions import aot_function

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64)
#: Operators whose results hold whatever was in memory.
UNDEFINED = ("empty", "new_empty", "resize_")
#: Operators whose backward pass crashes the process for tensors without elements.
CRASHES_EMPTY = ("nn.functional.pdist",)
FORMS = ("function", "in place", "out")
LAYOUTS = ("plain", "strided", "expanded", "overlapping", "empty")


def eager_graph(gm, inputs):
    return gm


def samples(op, dtype, limit):
    wants = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    wants = wants and dtype in op.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=wants), limit)


def laid_out(value, layout):
    """Return a tensor of the same dtype with another layout, or None."""
    plain = value.detach()
    if layout == "plain" or plain.layout is not torch.strided:
        return value if layout == "plain" else None
    if layout == "strided":
        found = torch.empty((*plain.shape, 2), dtype=plain.dtype)[..., 0].copy_(plain) if plain.dim() else None
    elif layout == "expanded":
        found = plain[:1].clone().expand_as(plain) if plain.dim() and plain.size(0) > 1 else None
    elif layout == "overlapping":
        if plain.dim() != 1 or plain.numel() < 3:
            return None
        found = plain.clone().as_strided((plain.numel() // 2, 2), (1, 1)).unfold(0, 1, 1).squeeze(-1)
    else:
        found = plain[:0].clone() if plain.dim() else None
    return None if found is None else found.requires_grad_(value.requires_grad)


def call_of(op, form):
    """Return the operator in a form as a function of its arguments, or None."""
    if form == "function":
        return op.op
    if form == "in place":
        return op.inplace_variant
    if not op.supports_out:
        return None

    def with_out(out, *args, **kwargs):
        return op.op(*args, out=out, **kwargs)

    return with_out


def copied(flat):
    """Return copies with the same layout, and which of the copies alias."""
    made = {}
    for value in flat:
        if isinstance(value, torch.Tensor) and id(value) not in made:
            made[id(value)] = like(value)
    return [made.get(id(value), value) for value in flat]


def like(value):
    if value.layout is not torch.strided:
        return value.detach().clone().requires_grad_(value.requires_grad)
    base = value.detach()
    length = 1 + sum((size - 1) * stride for size, stride in zip(base.shape, base.stride())) if base.numel() else 0
    memory = base.as_strided((length,), (1,)).clone() if length else base.new_empty(0)
    return memory.as_strided(base.shape, base.stride()).detach().requires_grad_(value.requires_grad)


def has_gradients(side):
    """Whether eager mode gives gradients for any gradients of the results."""
    try:
        compare_gradients([side, side])
    except RuntimeError:
        return False
    return True


def outcome(op, form, layout, sample, dynamic=False):
    """Return `equal`, `refused ID`, `differs: ...`, or None where eager mode raises or there is nothing to call."""
    if layout == "empty" and op.name in CRASHES_EMPTY:
        return None
    call, first = call_of(op, form), sample.input
    if call is None or not isinstance(first, torch.Tensor):
        if call is None or layout != "plain" or form == "in place":
            return None
    else:
        first = laid_out(first, layout)
        if first is None or (form == "in place" and first.requires_grad and first.is_leaf):
            first = None if first is None else first.detach()
        if first is None:
            return None
    args = (first, *sample.args)
    if form == "out":
        args = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in args)
    flat, tree = tree_flatten((args, sample.kwargs))
    if form == "out":
        flat = [one.detach() if isinstance(one, torch.Tensor) else one for one in flat]
        try:
            out = call_of(op, "function")(*args, **sample.kwargs)
        except Exception:
            return None
        outs, out_tree = tree_flatten(out)
        if not all(isinstance(one, torch.Tensor) for one in outs):
            return None
        flat = [*(torch.empty_like(one) for one in outs), *flat]
    else:
        outs, out_tree = [], None

    def run(function, values):
        values = list(values)
        if form == "out":
            out, values = tree_unflatten(values[: len(outs)], out_tree), values[len(outs) :]
            a, k = tree_unflatten(values, tree)
            return function(out, *a, **k)
        a, k = tree_unflatten(values, tree)
        return function(*a, **k)

    sides = []
    for compiled in (False, True):
        torch.manual_seed(3)
        values = copied(flat)
        function = aot_function(call, eager_graph, dynamic=dynamic) if compiled else call
        try:
            result = run(function, values)
        except AotUnsupported as error:
            return f"refused {error.id}"
        except Exception as error:
            if not compiled:
                return None
            return f"differs: raises {type(error).__name__} {str(error)[:150]}"
        tensors = [one for one in values if isinstance(one, torch.Tensor)]
        found = tree_flatten(result)[0]
        if any(isinstance(one, torch.Tensor) and one.layout is not torch.strided for one in [*tensors, *found]):
            return None
        sides.append((tensors, tensors, found, torch.get_rng_state()))
    try:
        compare(sides)
        if has_gradients(sides[0]):
            compare_gradients(sides)
    except Exception as error:
        return f"differs: {str(error)[:200]}"
    return "equal"


def main(pattern, limit):
    total = collections.Counter()
    for name in sorted(OPS):
        if not fnmatch.fnmatch(name, pattern) or name.startswith(UNDEFINED):
            continue
        op, found = OPS[name], collections.Counter()
        for dtype, form, layout, dynamic in itertools.product(DTYPES, FORMS, LAYOUTS, (False, True)):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for sample in samples(op, dtype, limit):
                result = outcome(op, form, layout, sample, dynamic)
                if result is not None:
                    found[result] += 1
                    total[result.partition(" ")[0] if not result.startswith("refused") else result] += 1
                    if result.startswith("differs"):
                        print(name, dtype, form, layout, "dynamic" if dynamic else "", result[:260], flush=True)
        other = {kind: count for kind, count in found.items() if not kind.startswith(("equal", "differs"))}
        if other:
            print(name, dict(found.most_common(1)), other, flush=True)
    print(dict(total))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2)
