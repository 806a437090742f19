"""Random programs compiled for symbolic sizes, compared with eager mode at every size that the guards allow."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
import torch
from harness import fresh
from programs import program
from symbols import check, compile_symbolic, guards_hold
from test_random_programs import EXPECTED, valid

from framesmith_aot import AotUnsupported

SIZES = (4, 2, 3, 5, 6, 7, 11)
MODES = {"training": {}, "history": {"history": True}, "copies outside": {"keep_input_mutations": False}}


def compiled_at(gm, inputs, options):
    dynamic = [[dim for dim, length in enumerate(value.shape) if length == 4] for value in inputs]
    return compile_symbolic(gm, inputs, dynamic, **options)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", range(4))
def test_random_programs(mode, block, capsys):
    options = dict(MODES[mode])
    history = options.pop("history", False)
    ran: Counter[int] = Counter()
    for seed in range(40 * block, 40 * block + 40):
        gm, inputs = program(seed)
        if not valid(gm, inputs, history):
            continue
        try:
            graph = compiled_at(gm, fresh(inputs, history), options)
        except AotUnsupported as error:
            assert error.id in EXPECTED, (seed, error)
            continue
        for size in SIZES:
            values = program(seed, size)[1]
            if guards_hold(graph, values) and valid(gm, values, history):
                with contextlib.redirect_stdout(None):
                    check(graph, gm, values, history=history)
                ran[size] += 1
    capsys.readouterr()  # what fx prints of programs that are not valid
    assert ran[4] >= 8 and sum(ran.values()) > 3 * ran[4], ran


def test_sizes_that_must_be_equal():
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(torch.add, (x, y)),))
    gm = torch.fx.GraphModule({}, graph)
    compiled = compile_symbolic(gm, [torch.randn(4), torch.randn(4)])
    assert not guards_hold(compiled, [torch.randn(3), torch.randn(5)])
