"""Records calls of autograd's engine, and says why one is left to it. See Note [Engine calls]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
from torch import fx

from framesmith_aten.graphs.autograd_calls import engine_gradients
from framesmith_aten.recording import effects_of
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.tensors.tensor import TensorValue


class Refused(Exception):
    """A call that is left to the engine. `early`: nothing has been recorded of it."""

    def __init__(self, what: str, early: bool) -> None:
        super().__init__(what)
        self.early = early


def refuse(what: str, early: bool = True) -> NoReturn:
    raise Refused(what, early)


def record_engine(
    tr: Tracer,
    outputs: Sequence[TensorValue],
    inputs: Sequence[TensorValue],
    given: Sequence[Value],
    *,
    retained: bool,
    create: bool = False,
    unused: bool = True,
    materialize: bool = False,
    stops: Sequence[TensorValue] = (),
) -> list[Value]:
    """Record a call of `engine_gradients`, and return its results."""
    tr.facts.runs_engine = True
    settings = [tr.constant(one) for one in (retained, create, unused, materialize)]
    made = tr.call_torch(engine_gradients, (list(outputs), list(inputs), [*given], *settings, list(stops)), {})
    if not retained:
        effects_of(_last_call(tr)).irreversible = True  # it frees histories, though nothing may read the gradients
    found = made.unpack(tr)
    if any(isinstance(one, TensorValue) and one.fake.layout is not torch.strided for one in found):
        refuse("sparse gradients", early=False)
    return found


def _last_call(tr: Tracer) -> fx.Node:
    nodes: Iterator[fx.Node] = reversed(tr.builder.graph.nodes)
    return next(node for node in nodes if node.target is engine_gradients)
