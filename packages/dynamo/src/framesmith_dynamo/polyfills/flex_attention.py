"""Flex attention (`torch.nn.attention.flex_attention`) in tensor operations, and the constructors of its masks.

The semantics are those of eager mode, which computes all scores: `mask_mod` alone decides which keys a query sees; a
block mask's lists of blocks, which follow from it, are not read. See docs/design/kernels/0030-flex-attention.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from framesmith_dynamo.torch_adapter import unstable

Mod = Callable[..., Tensor]


def elementwise(mod: Mod, score: Tensor | None, indices: tuple[Tensor, ...]) -> Tensor:
    """Apply `mod`, a function of scalars, to all elements (see `values/higher_order/flex_attention.py`).

    `score` is (batch, heads, queries, keys) or None; each of the four `indices` has one of these sizes, and ones.
    """
    raise NotImplementedError("only traced code has this function")


def indices_of(sizes: tuple[int, int, int, int], device: Any) -> tuple[Tensor, ...]:
    """Return the indices of batch, head, query and key, each along its own of four dimensions."""
    b, h, m, n = sizes
    return (
        torch.arange(0, b, device=device).view(b, 1, 1, 1),
        torch.arange(0, h, device=device).view(1, h, 1, 1),
        torch.arange(0, m, device=device).view(1, 1, m, 1),
        torch.arange(0, n, device=device).view(1, 1, 1, n),
    )


def scores_of(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return the scores QKᵀ in float32, or float64, of shape (batch, heads, queries, keys).

    Heads that share keys are rows of one matmul.
    """
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, queries, depth = query.shape
    shared, keys = key.shape[1], key.shape[2]
    rows = query if heads == shared else query.reshape(batch, shared, heads // shared * queries, depth)
    scores = rows.to(kind) @ key.expand(batch, shared, keys, depth).to(kind).transpose(-2, -1)
    return scores.view(batch, heads, queries, keys) * scale


def attend(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None, mask_mod: Mod | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention output, and of each query's scores the logarithm of the sum of exponentials, and the
    maximum.

    Raises nothing: shapes have been checked.
    """
    scores = scores_of(query, key, scale)
    batch, heads, queries, keys = scores.shape
    indices = indices_of((batch, heads, queries, keys), query.device)
    seen = None if mask_mod is None else elementwise(mask_mod, None, indices)
    if seen is not None:
        # Where a key is hidden no gradient reaches its score, not even one that is not finite.
        scores = torch.where(seen, scores, scores.detach()) if scores.requires_grad else scores
    if score_mod is not None:
        scores = elementwise(score_mod, scores, indices)
    if seen is not None:
        kind = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = torch.where(seen, scores, torch.full((), -math.inf, dtype=kind, device=query.device))
    scores = scores.expand(batch, heads, queries, keys)
    largest = scores.detach().amax(-1)
    sums = _sums(scores, largest) if scores.requires_grad else scores.logsumexp(-1)
    probabilities = unstable.safe_softmax(scores, -1).to(query.dtype)
    shared, depth = value.shape[1], value.shape[3]
    rows = probabilities if heads == shared else probabilities.view(batch, shared, heads // shared * queries, keys)
    output = (rows @ value.to(query.dtype).expand(batch, shared, keys, depth)).view(batch, heads, queries, depth)
    return output, sums, largest


def _sums(scores: Tensor, largest: Tensor) -> Tensor:
    """Return the logarithm of each row's sum of exponentials; a fully masked row, all -inf, has no gradient."""
    masked = largest == -math.inf
    return torch.where(masked, -math.inf, torch.where(masked.unsqueeze(-1), 0, scores).logsumexp(-1))


def ordered_as(result: Tensor, order: tuple[int, ...], back: tuple[int, ...], fresh: bool) -> Tensor:
    """Return the tensor with its dimensions in memory in this order, outermost first; `fresh` if that needs a copy."""
    permuted = result.permute(order)
    copied = permuted.clone(memory_format=torch.contiguous_format) if fresh else permuted.contiguous()
    return copied.permute(back)


def create_mask(
    mod_fn: Mod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any, of_scores: bool
) -> Tensor:
    """Return the mask of shape (B, H, Q_LEN, KV_LEN); `of_scores`: of a function that changes scores."""
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    indices = indices_of(sizes, device)
    if of_scores:
        found = elementwise(mod_fn, torch.zeros(sizes, device=device), indices).expand(sizes)
        return torch.where(torch.isneginf(found), False, True)
    return elementwise(mod_fn, None, indices).expand(sizes).contiguous()


def ordered_to_dense(num_blocks_in_row: Tensor, col_indices: Tensor, num_cols: int | None = None) -> Tensor:
    """Return which columns of each row are listed, as ones in int32, given lists of columns and the valid counts.

    Without `num_cols` there are as many columns as a list has entries, as in torch 2.11.
    """
    length = col_indices.shape[-1]
    entries = torch.arange(length, dtype=torch.int32, device=col_indices.device)
    columns = torch.arange(length if num_cols is None else num_cols, dtype=torch.int32, device=col_indices.device)
    counts = entries < num_blocks_in_row.unsqueeze(-1)
    listed = col_indices.unsqueeze(-1) == columns
    return (listed & counts.unsqueeze(-1)).any(-2).to(torch.int32)


def dense_to_ordered(dense_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of columns set in each row, and all columns, those set first."""
    dense = dense_mask.to(torch.int32)
    columns = torch.argsort(dense, dim=-1, descending=True, stable=True)
    count = dense.sum(-1).to(torch.int32, memory_format=torch.contiguous_format)
    return count, columns.to(torch.int32, memory_format=torch.contiguous_format)


def fits(block_mask: Any, query: Tensor, key: Tensor) -> bool:
    """Whether a block mask has the sizes of queries and keys, and the devices match; a mask of one block fits."""
    counts = block_mask.kv_num_blocks
    if query.device != counts.device or (query.size(0) != key.size(0) and counts.size(0) != query.size(0)):
        return False
    if tuple(block_mask.BLOCK_SIZE) == (unstable.LARGE_SPARSE_BLOCK_SIZE, unstable.LARGE_SPARSE_BLOCK_SIZE):
        return True
    queries, keys = block_mask.seq_lengths
    return bool(query.size(-2) == queries and key.size(-2) == keys)


def attend_cast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None,
    mask_mod: Mod | None,
    scale: float,
    dtype: torch.dtype,
    device_type: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend` under autocast: the three tensors are cast, and autocast is off inside."""
    q, k, v = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    with torch.autocast(device_type, enabled=False):
        return attend(q, k, v, score_mod, mask_mod, scale)


def to_base_2(output: Tensor, sums: Tensor, largest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results in the form of torch's operator."""
    return output, sums / math.log(2), largest / math.log(2)
