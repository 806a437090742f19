"""Random programs over views and in-place mutations: compiled equals eager, or is refused with a reason."""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness import fresh, run_both
from programs import program

from framesmith_aot import AotUnsupported

#: A refusal for another reason would be a gap worth knowing.
EXPECTED = {"overlapping-mutation", "view-replay", "backward-error"}
MODES = {
    "training": {},
    "history": {"history": True},
    "copies outside": {"keep_input_mutations": False},
    "whole operators": {"lowers": lambda op: True},
    "inference": {"inference": True},
}


def valid(gm, inputs, history):
    """Whether eager mode itself runs the program and its backward pass."""
    leaves = fresh(inputs)
    try:
        outs = gm(*[leaf.clone() if history and leaf.requires_grad else leaf for leaf in leaves])
        roots = [out for out in outs if out.grad_fn is not None]
        if roots:
            sum(out.sum() for out in roots).backward()
    except (RuntimeError, IndexError):
        return False
    return True


@pytest.mark.sampled(10)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", range(4))
def test_random_programs(mode, block, capsys):
    ran = 0
    for seed in range(50 * block, 50 * block + 50):
        gm, inputs = program(seed)
        if mode == "inference":
            inputs = [value.detach() for value in inputs]
        with torch.inference_mode() if mode == "inference" else contextlib.nullcontext():
            if not valid(gm, inputs, mode == "history"):
                continue
        try:
            run_both(gm, inputs, calls=1, **MODES[mode])
            ran += 1
        except AotUnsupported as error:
            assert error.id in EXPECTED, error
    capsys.readouterr()  # what fx prints of programs that are not valid
    assert ran >= 10
