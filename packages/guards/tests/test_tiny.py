"""The shortest proof that guards hold, miss and explain themselves."""

import torch

from framesmith_guards import Guard, LocalSource, compile_guards, state_guards


def scale(x, k):
    return x * k


def test_hits_misses_and_says_why():
    x = torch.ones(2, 3)
    guards = [*state_guards(), Guard(LocalSource("x"), "TENSOR_MATCH", x), Guard(LocalSource("k"), "EQUALS_MATCH", 3)]
    program = compile_guards(guards, ["x", "k"])
    assert program((torch.zeros(2, 3), 3), scale)
    assert program.explain((torch.zeros(2, 3), 3), scale) is None
    assert not program((x, 4), scale)
    assert program.explain((x, 4), scale) == "L['k']: expected 3, found 4"
    assert not program((x.double(), 3), scale)
    assert "expected dtype torch.float32, found torch.float64" in program.explain((x.double(), 3), scale)
    with torch.no_grad():
        assert not program((x, 3), scale)
