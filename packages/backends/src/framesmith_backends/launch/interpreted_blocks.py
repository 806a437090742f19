"""Reductions and scans of Triton's interpreter, over whole blocks.

It combines element after element, each by a call in Python: a block of 1,024 is 1,024 calls. Here neighbours are
combined, all pairs of a block by one call, and so on with what comes of them, which is also nearer to how a GPU adds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

#: The interpreter itself replaces parts of `triton.language` while a kernel runs: one at a time.
_LOCK = threading.RLock()
Blocks = list[np.ndarray[Any, Any]]


@contextmanager
def whole_blocks() -> Iterator[None]:
    """Within it the interpreter combines blocks as this module does; other threads' kernels wait."""
    from triton.runtime import interpreter

    with _LOCK:
        reduce, scan = interpreter.ReduceOps.generic_reduce, interpreter.ScanOps.generic_scan
        interpreter.ReduceOps.generic_reduce, interpreter.ScanOps.generic_scan = _reduce, _scan
        try:
            yield
        finally:
            interpreter.ReduceOps.generic_reduce, interpreter.ScanOps.generic_scan = reduce, scan


def _combiner(operation: Any, inputs: Sequence[Any]) -> Callable[[Blocks, Blocks], Blocks]:
    """The operation's function of two lists of blocks of one shape, a block for each of the inputs."""

    def combine(first: Blocks, second: Blocks) -> Blocks:
        blocks = [
            operation.to_tensor(block, given.dtype)
            for side in (first, second)
            for block, given in zip(side, inputs, strict=True)
        ]
        found = operation.combine_fn.fn(*blocks)
        found = found if isinstance(found, tuple) else (found,)
        return [
            np.asarray(one.handle.data).astype(like.dtype).reshape(like.shape)
            for one, like in zip(found, first, strict=True)
        ]

    return combine


def _reduce(self: Any, inputs: Sequence[Any]) -> list[Any]:
    """In place of the interpreter's own method: blocks of whatever shape, along `self.axis` or, if None, as a whole."""
    blocks: Blocks = [given.handle.data for given in inputs]
    dimensions, axis = blocks[0].ndim, self.axis
    if axis is None:
        blocks, axis = [block.reshape(-1) for block in blocks], 0
    combine = _combiner(self, inputs)
    blocks = [np.moveaxis(block, axis, 0) for block in blocks]
    while (length := len(blocks[0])) > 1:
        even = length & ~1
        pairs = combine([block[0:even:2] for block in blocks], [block[1:even:2] for block in blocks])
        blocks = [np.concatenate([pair, block[even:]]) for pair, block in zip(pairs, blocks, strict=True)]
    results = []
    for block, given in zip(blocks, inputs, strict=True):
        reduced: Any = block[0]
        if self.keep_dims:
            reduced = np.expand_dims(reduced, axis) if self.axis is not None else reduced.reshape((1,) * dimensions)
        results.append(self.to_tensor(reduced, given.dtype))
    return results


def _scan(self: Any, inputs: Sequence[Any]) -> list[Any]:
    """In place of the interpreter's own method: what is up to each place, in `log2` steps of twice the distance."""
    combine = _combiner(self, inputs)
    blocks: Blocks = [np.moveaxis(given.handle.data, self.axis, 0) for given in inputs]
    distance = 1
    while distance < len(blocks[0]):
        later = combine([block[:-distance] for block in blocks], [block[distance:] for block in blocks])
        blocks = [np.concatenate([block[:distance], more]) for block, more in zip(blocks, later, strict=True)]
        distance *= 2
    return [
        self.to_tensor(np.moveaxis(block, 0, self.axis), given.dtype)
        for block, given in zip(blocks, inputs, strict=True)
    ]
