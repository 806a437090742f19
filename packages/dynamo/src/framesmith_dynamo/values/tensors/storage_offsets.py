"""Storage offsets of inputs, guarded where a trace depends on them: guards of tensors do not check them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from framesmith_aten.layouts import share_storage
from framesmith_dynamo.values.base import Tracer
from framesmith_guards import TensorPropertySource

if TYPE_CHECKING:
    from framesmith_dynamo.graph.builder import GraphBuilder


def guarded_offsets(tr: Tracer, builder: GraphBuilder, fake: torch.Tensor) -> Iterator[int]:
    """Guard the storage offsets of inputs that share memory with `fake`; return their distance in bytes to those of
    their fakes.

    Fakes of inputs with symbolic sizes have offset 0.
    """
    for ref in builder.refs.values():
        if ref.real is not None and ref.source is not None and share_storage(ref.fake, fake):
            real = int(ref.real.storage_offset())
            tr.guard(TensorPropertySource(ref.source, "storage_offset"), "EQUALS_MATCH", real)
            yield (real - int(ref.fake.storage_offset())) * ref.real.element_size()
