"""The first file to run: a function with a graph break, and one whose size changes."""

import torch

import framesmith


def normalise(x, scale):
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    print("called with", tuple(x.shape))
    return torch.tanh(y * scale)


def test_a_break_leaves_the_rest_compiled(capsys):
    framesmith.reset()
    x = torch.linspace(-1, 1, 64).reshape(4, 16)
    torch.testing.assert_close(framesmith.compile(normalise)(x, 2.0), normalise(x, 2.0))
    assert capsys.readouterr().out == "called with (4, 16)\n" * 2
    counts = framesmith.stats()
    assert counts["graphs"] == 2 and counts["breaks"] == 1


def test_changing_sizes_compile_twice():
    framesmith.reset()
    halves = framesmith.compile(lambda x, factor: x[: x.shape[0] // 2] * factor)
    for rows, factor in ((8, 0.5), (12, 0.25), (30, 0.125), (31, 3.0)):
        assert torch.equal(halves(torch.ones(rows, 4), factor), torch.full((rows // 2, 4), factor))
    assert framesmith.stats()["frames_compiled"] == 2
