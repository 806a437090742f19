"""Operators that only GPUs have, composed of what the CPU has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
Tensors = tuple[torch.Tensor, ...]
HALVES = (torch.bfloat16, torch.float16)


def cudnn_batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Tensors:
    return (
        *aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps),
        torch.empty(0, dtype=torch.uint8),
    )


def cudnn_batch_norm_backward(
    x: torch.Tensor, grad: torch.Tensor, weight: Any, mean: Any, var: Any, saved: Any, inverse: Any, eps: float, _: Any
) -> Tensors:
    return tuple(aten.native_batch_norm_backward(grad, x, weight, mean, var, saved, inverse, True, eps, [True] * 3))


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype == torch.complex32:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return bool(aten.equal.default(one, other))


def in_float(op: Any, *narrow: int) -> Callable[..., Any]:
    """The low-precision operator in float32, as GPUs have it; its results of these numbers are of its type."""

    def kernel(x: torch.Tensor, *rest: Any) -> Any:
        if x.dtype not in (torch.bfloat16, torch.float16):
            return op(x, *rest)
        given = [t for t in (x, *rest) if isinstance(t, torch.Tensor) and t.dtype == x.dtype]
        wide = {id(t): t.float() for t in given}
        found = op(*[wide.get(id(t), t) for t in (x, *rest)])
        for t in given:
            t.copy_(wide[id(t)])  # running statistics are written to
        return tuple(t if t is None or k not in narrow else t.to(x.dtype) for k, t in enumerate(found))

    return kernel


def batch_norm(op: Any) -> Callable[..., Any]:
    """One that returns in evaluation what it has normalised by, where the CPU returns nothing."""
    wide = in_float(op, 0)

    def kernel(x: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
        found = wide(x, weight, bias, *rest)
        mean, var, training, _, eps = rest
        return found if training else (found[0], mean.float(), (var.float() + eps).rsqrt())

    return kernel


class Attention:
    """Attention with its scores in memory, in float32; heads first."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, dropout: float, causal: bool,
        scale: float | None, seed: Any = None,
    ) -> None:  # fmt: skip
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.kind, self.shared = q.dtype, q.shape[1] // k.shape[1]
        self.q, self.k, self.v = (
            t.float() for t in (q, k.repeat_interleave(self.shared, 1), v.repeat_interleave(self.shared, 1))
        )
        scores = self.q @ self.k.mT * self.scale
        if bias is not None:
            scores = scores + bias
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        self.sums, self.weights = scores.logsumexp(-1), scores.softmax(-1)
        self.kept = torch.ones(())
        #: Of dropout: the state of the default generator, which the backward pass is given.
        self.seed = int(torch.default_generator.initial_seed() if seed is None else seed.flatten()[0])
        if dropout:
            generator = torch.Generator().manual_seed(self.seed)
            self.kept = (torch.rand(scores.shape, generator=generator) >= dropout) / (1 - dropout)

    def words(self) -> torch.Tensor:
        """The seed as forward passes return it."""
        return torch.tensor(self.seed)

    def result(self) -> torch.Tensor:
        """Laid out with heads beside each other."""
        return (self.weights * self.kept @ self.v).to(self.kind).transpose(1, 2).contiguous().transpose(1, 2)

    def gradients(self, grad: torch.Tensor) -> Tensors:
        """Of queries, keys, values and the bias, of all its rows."""
        grad = grad.float()
        of_weights = grad @ self.v.mT * self.kept
        of_scores = self.weights * (of_weights - (of_weights * self.weights).sum(-1, keepdim=True))
        found = (
            of_scores @ self.k * self.scale,
            of_scores.mT @ self.q * self.scale,
            (self.weights * self.kept).mT @ grad,
        )
        q, k, v = (t.to(self.kind) for t in found)
        if self.shared > 1:
            k, v = (t.unflatten(1, (-1, self.shared)).sum(2) for t in (k, v))
        return q, k, v, of_scores.to(self.kind)


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0, causal: bool = False,
    debugged: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    one = Attention(q, k, v, None, dropout, causal, scale)
    out, sums = one.result(), one.sums
    words = torch.stack([one.words(), torch.tensor(0)]).to(torch.uint64)
    return out, sums, None, None, q.shape[2], k.shape[2], words, torch.zeros((), dtype=torch.int64), torch.empty(0)


def flash_attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: Any, sums: Any, cum_q: Any, cum_k: Any,
    most_q: int, most_k: int, dropout: float, causal: bool, seed: Any, offset: Any, *, scale: float | None = None,
) -> Tensors:  # fmt: skip
    return Attention(q, k, v, None, dropout, causal, scale, seed).gradients(grad)[:3]


def cudnn_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, with_sums: bool, dropout: float = 0.0,
    causal: bool = False, debugged: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    one = Attention(q, k, v, bias, dropout, causal, scale)
    out, sums = one.result(), one.sums
    kept = sums.unsqueeze(-1) if with_sums else torch.empty(0)
    return out, kept, None, None, q.shape[2], k.shape[2], one.words(), torch.tensor(0), None


def cudnn_attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: Any, sums: Any, seed: Any, offset: Any,
    bias: Any, cum_q: Any, cum_k: Any, most_q: int, most_k: int, dropout: float, causal: bool, *,
    scale: float | None = None,
) -> Tensors:  # fmt: skip
    return Attention(q, k, v, bias, dropout, causal, scale, seed).gradients(grad)[:3]


def efficient_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, with_sums: bool, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    one = Attention(q, k, v, bias, dropout, causal, scale)
    out, sums = one.result(), one.sums
    rows = -(-q.shape[2] // 32) * 32
    padded = sums.new_full((*sums.shape[:2], rows), torch.inf)
    padded[..., : q.shape[2]] = sums
    return out, padded if with_sums else sums.new_empty((*sums.shape[:2], 0)), one.words(), torch.tensor(0)


def efficient_attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any, out: Any, sums: Any, seed: Any,
    offset: Any, dropout: float, wanted: list[bool], causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    *found, of_bias = Attention(q, k, v, bias, dropout, causal, scale, seed).gradients(grad)
    return (*found, of_bias if bias is not None and wanted[3] else None)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def rms_norm(x: torch.Tensor, shape: list[int], weight: Any, eps: float | None) -> Tensors:
    dims, wide = list(range(-len(shape), 0)), _wide(x)
    inverse = (wide.square().mean(dims, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    found = wide * inverse
    return (found if weight is None else found * weight).to(x.dtype).contiguous(), inverse


def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: list[int], inverse: torch.Tensor, weight: Any, wanted: list[bool]
) -> Any:
    dims = list(range(-len(shape), 0))
    grad, normal = _wide(grad), _wide(x) * inverse
    scaled = grad if weight is None else grad * weight
    of_x = (scaled - normal * (scaled * normal).mean(dims, keepdim=True)) * inverse
    of_weight, rows = grad * normal, list(range(x.dim() - len(shape)))
    of_weight = of_weight.sum(rows) if rows else of_weight  # a sum of no dimensions is one of all
    return of_x.to(x.dtype), of_weight.to(x.dtype) if weight is not None and wanted[1] else None


def _biased(gates: torch.Tensor, bias: Any) -> torch.Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, one: Any = None, other: Any = None
) -> Tensors:
    i, f, g, o = (_biased(gates, one) + _biased(hidden, other)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    found = f * cell + i * g
    return o * found.tanh(), found, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    of_hidden: Any, of_cell: Any, before: torch.Tensor, cell: torch.Tensor, kept: torch.Tensor, biased: bool
) -> Any:
    i, f, g, o = kept.chunk(4, 1)
    zero = torch.zeros_like(cell)
    of_hidden, of_cell = (zero if t is None else t for t in (of_hidden, of_cell))
    of_cell = of_cell + of_hidden * o * (1 - cell.tanh().square())
    gates = [of_cell * g * i * (1 - i), of_cell * before * f * (1 - f), of_cell * i * (1 - g * g)]
    found = torch.cat([*gates, of_hidden * cell.tanh() * o * (1 - o)], 1)
    return found, of_cell * f, found.sum(0) if biased else None


def gru_cell(
    gates: torch.Tensor, hidden: torch.Tensor, before: torch.Tensor, one: Any = None, other: Any = None
) -> Tensors:
    (a, b, c), (x, y, z) = _biased(gates, one).chunk(3, 1), _biased(hidden, other).chunk(3, 1)
    reset, update = (a + x).sigmoid(), (b + y).sigmoid()
    new = (c + reset * z).tanh()
    return new + update * (before - new), torch.cat([reset, update, new, before, z], 1)


def gru_cell_backward(grad: torch.Tensor, kept: torch.Tensor, biased: bool) -> Any:
    reset, update, new, before, hidden = kept.chunk(5, 1)
    of_new = grad * (1 - update) * (1 - new * new)
    first = [of_new * hidden * reset * (1 - reset), grad * (before - new) * update * (1 - update)]
    gates, others = torch.cat([*first, of_new], 1), torch.cat([*first, of_new * reset], 1)
    biases = (gates.sum(0), others.sum(0)) if biased else (None, None)
    return gates, others, grad * update, *biases


def widened(op: Any) -> Callable[..., Any]:
    """A low-precision softmax, with a result in float32 where that is asked for."""
    return lambda x, dim, wide: op(x.float() if wide else x, dim, False)


def narrowed(op: Any) -> Callable[..., Any]:
    """A softmax's gradient, of an input that was low-precision where the result was not."""

    def kernel(grad: torch.Tensor, found: torch.Tensor, dim: int, kind: torch.dtype) -> torch.Tensor:
        result: torch.Tensor = op(grad, found, dim, grad.dtype)
        return result.to(kind)

    return kernel


def in_wide_type(op: Any, *values: Any, **named: Any) -> Any:
    """An operator that CPUs lack in low precision, in float32; none that writes to its arguments."""
    narrow = [t for t in tree_leaves((values, named)) if isinstance(t, torch.Tensor) and t.dtype in HALVES]
    if not narrow or op._schema.is_mutable:
        return NotImplemented

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALVES else value

    def back(value: Any) -> Any:
        wanted = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.to(narrow[0].dtype) if wanted else value

    return tree_map(back, op(*tree_map(wide, values), **tree_map(wide, named)))


def matmul_of_type(op: Any) -> Callable[..., Any]:
    """Of low-precision types, with a wider result."""

    def kernel(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, **out: torch.Tensor) -> torch.Tensor:
        return op(a.to(kind), b.to(kind), **out)  # type: ignore[no-any-return]

    return kernel


def histogram(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    wide: torch.Tensor = aten.histc.default(x if x.is_floating_point() else x.double(), *rest)
    return wide.to(x.dtype)


def singular_values(x: torch.Tensor, full: bool = False, vectors: bool = True, *, driver: Any = None) -> Tensors:
    """The right ones row by row, as cuSOLVER leaves them."""
    u, s, v = aten._linalg_svd.default(x, full, vectors)
    return u, s, v.contiguous()


KERNELS: dict[str, Callable[..., Any]] = {
    "equal": equal,
    "native_layer_norm": in_float(aten.native_layer_norm.default, 0),
    "native_layer_norm_backward": in_float(aten.native_layer_norm_backward.default, 0, 1, 2),
    "native_batch_norm": batch_norm(aten.native_batch_norm.default),
    "_native_batch_norm_legit": batch_norm(aten._native_batch_norm_legit.default),
    "native_batch_norm_backward": in_float(aten.native_batch_norm_backward.default, 0, 1, 2),
    "cudnn_batch_norm": cudnn_batch_norm,
    "cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "_scaled_dot_product_flash_attention": flash_attention,
    "_scaled_dot_product_flash_attention_backward": flash_attention_backward,
    "_scaled_dot_product_efficient_attention": efficient_attention,
    "_scaled_dot_product_efficient_attention_backward": efficient_attention_backward,
    "_scaled_dot_product_cudnn_attention": cudnn_attention,
    "_scaled_dot_product_cudnn_attention_backward": cudnn_attention_backward,
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
    "_linalg_svd": singular_values,
    "_softmax": widened(aten._softmax.default),
    "_log_softmax": widened(aten._log_softmax.default),
    "_softmax_backward_data": narrowed(aten._softmax_backward_data.default),
    "_log_softmax_backward_data": narrowed(aten._log_softmax_backward_data.default),
    "mm.dtype": matmul_of_type(aten.mm),
    "mm.dtype_out": matmul_of_type(aten.mm),
    "bmm.dtype": matmul_of_type(aten.bmm),
    "bmm.dtype_out": matmul_of_type(aten.bmm),
    "histc": histogram,
    "cudnn_grid_sampler": lambda x, grid: aten.grid_sampler_2d(x, grid, 0, 0, True),
    "cudnn_grid_sampler_backward": lambda x, grid, grad: aten.grid_sampler_2d_backward(
        grad, x, grid, 0, 0, True, [True, True]
    ),
    "_use_cudnn_ctc_loss": lambda *_: False,
    "_use_cudnn_ctc_loss.Tensor": lambda *_: False,
    "_use_miopen_ctc_loss": lambda *_: False,
    "_use_miopen_ctc_loss.Tensor": lambda *_: False,
    "cudnn_is_acceptable": lambda x: False,  # recurrent layers go step by step
}
