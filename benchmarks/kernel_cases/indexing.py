"""Reading and adding up by indices."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.kernel_cases.case import Case, Inputs, Make, Tensor, group, words

TABLE = (8192, 128)


def gather(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index) * 2


def gathered(dtype: torch.dtype) -> Inputs:
    return torch.randn(4096, 256).to(dtype), torch.randint(0, 256, (4096, 256))


def index_select(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index).relu()


def advanced_index(x: Tensor, index: Tensor) -> Tensor:
    return x[index, index % 128]


def embedding(table: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, table)


def embedding_and_positions(table: Tensor, positions: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, table) * 11.3 + positions


def table_positions_and_words(dtype: torch.dtype) -> Inputs:
    return torch.randn(TABLE).to(dtype), torch.randn(512, 128).to(dtype), torch.randint(0, 8192, (16, 512))


def embedding_bag(table: Tensor, index: Tensor) -> Tensor:
    return F.embedding_bag(index, table, mode="mean")


def scatter_add(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_add(1, index, source)


def scatter(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter(1, index, source)


def scatter_maxima(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(1, index, source, "amax")


def index_add(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.index_add(0, index, source * 2)


def accumulate(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.index_put((index,), source, accumulate=True)


def neighbours(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """A graph's messages: each edge reads one vertex and adds to another."""
    return torch.zeros_like(x).index_add(0, index, x[index.flip(0)] * source.sigmoid())


def per_row(repeated: bool) -> Make:
    """A matrix, indices into each of its rows, and values."""

    def make(dtype: torch.dtype) -> Inputs:
        indices = torch.randint(0, 256, (2048, 512)) if repeated else torch.rand(2048, 256).argsort(1)
        return torch.randn(2048, 256).to(dtype), indices, torch.randn(indices.shape).to(dtype)

    return make


def whole_rows(dtype: torch.dtype) -> Inputs:
    """A table, rows of it, and what goes there."""
    return torch.randn(TABLE).to(dtype), torch.randint(0, 8192, (8192,)), torch.randn(8192, 128).to(dtype)


INDEXING = group(
    "indexing",
    Case("gather", gather, gathered),
    Case("gather_backward", gather, gathered, backward=True),
    Case("index_select", index_select, words(TABLE, (8192,))),
    Case("advanced_index", advanced_index, words(TABLE, (1 << 19,))),
    Case("embedding", embedding, words(TABLE, (16, 512))),
    Case("embedding_backward", embedding, words(TABLE, (16, 512)), backward=True),
    Case("embedding_and_positions", embedding_and_positions, table_positions_and_words),
    Case("embedding_bag", embedding_bag, words(TABLE, (1024, 8))),
    Case("embedding_bag_backward", embedding_bag, words(TABLE, (1024, 8)), backward=True),
    Case("scatter_add", scatter_add, per_row(repeated=True)),
    Case("scatter", scatter, per_row(repeated=False)),
    Case("scatter_maxima", scatter_maxima, per_row(repeated=True)),
    Case("index_add", index_add, whole_rows),
    Case("index_put_accumulate", accumulate, whole_rows),
    Case("neighbours", neighbours, whole_rows),
)
