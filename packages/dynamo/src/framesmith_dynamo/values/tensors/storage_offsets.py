"""Where in their storage the inputs begin, guarded where a trace depends on it: no guard of a tensor looks at that."""

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
    """Guards where the inputs begin whose memory `fake` is in; how many bytes further each does than its own fake.

    The fakes of inputs with symbolic sizes begin where their storage does.
    """
    for ref in builder.refs.values():
        if ref.real is not None and ref.source is not None and share_storage(ref.fake, fake):
            real = int(ref.real.storage_offset())
            tr.guard(TensorPropertySource(ref.source, "storage_offset"), "EQUALS_MATCH", real)
            yield (real - int(ref.fake.storage_offset())) * ref.real.element_size()
