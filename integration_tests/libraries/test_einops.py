"""einops, whose functions look up their recipes in caches: one graph for a call, also where the caches were empty."""

import pytest
import torch
from torch import nn

import framesmith

einops = pytest.importorskip("einops")
layers = pytest.importorskip("einops.layers.torch")

X = torch.arange(48.0).view(2, 4, 6)


def packed(x):
    together, shapes = einops.pack([x, x[:, 0]], "b * d")
    return einops.unpack(together * 2, shapes, "b * d")


def refused(x):
    try:
        return einops.rearrange(x, "b c -> c b")
    except einops.EinopsError as error:
        return x + len(str(error))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x):
        parts = self.project(x).chunk(3, -1)
        q, k, v = (einops.rearrange(part, "b n (h d) -> b h n d", h=2) for part in parts)
        weights = einops.einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        joined = einops.einsum(weights, v, "b h i j, b h j d -> b h i d")
        return self.out(einops.rearrange(joined, "b h n d -> b n (h d)"))


PROGRAMS = {
    "rearrange": lambda x: einops.rearrange(x, "b c (h w) -> b h w c", h=2),
    "rearrange a list": lambda x: einops.rearrange([x, x], "k b c d -> b k c d"),
    "an ellipsis": lambda x: einops.rearrange(x, "... d -> d ..."),
    "reduce": lambda x: einops.reduce(x, "b (c c2) d -> b c", "max", c2=2),
    "repeat": lambda x: einops.repeat(x, "b c d -> (r b) c d", r=3),
    "einsum": lambda x: einops.einsum(x, x, "b i d, b j d -> b i j"),
    "pack": packed,
    "parse_shape": lambda x: x * einops.parse_shape(x, "b c d")["c"],
    "layers": nn.Sequential(layers.Rearrange("b c d -> b (c d)"), layers.Reduce("b (a k) -> b a", "sum", a=2)),
    "attention": nn.Sequential(Attention(), Attention()),
    "refused": refused,
}  # fmt: skip


@pytest.fixture(params=[True, False], ids=["empty caches", "filled caches"])
def caches(request):
    einops.rearrange(X, "a b c -> a b c")  # the first call of a process looks for its backend, and notes it
    for module in (einops.einops, einops.packing):
        for found in vars(module).values():
            if request.param and hasattr(found, "cache_clear"):
                found.cache_clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name, caches):
    framesmith.reset()
    program = PROGRAMS[name]
    compiled = framesmith.compile(program, backend="eager", strict=True)
    first = compiled(X)
    torch.testing.assert_close([first, compiled(X)], [program(X)] * 2)
    assert framesmith.stats()["graphs"] == 1 and framesmith.stats()["breaks"] == 0


def test_dynamic_shapes(caches):
    framesmith.reset()
    model = PROGRAMS["attention"]
    compiled = framesmith.compile(model, backend="eager", strict=True)
    for batch in range(1, 12):
        x = torch.randn(batch, 4, 6)
        torch.testing.assert_close(compiled(x), model(x))
    assert framesmith.stats()["frames_compiled"] == 2 and not framesmith.stats()["recompile_limits"]


def test_counts_are_those_of_eager_mode():
    def counts(call):
        recipes = einops.einops._prepare_transformation_recipe
        recipes.cache_clear()
        for _ in range(3):
            call(X)
        return recipes.cache_info()

    framesmith.reset()
    program = PROGRAMS["attention"]
    assert counts(framesmith.compile(program, backend="eager")) == counts(program)
