"""Whole models of the registry: seconds of a step, candidates in processes of their own, interleaved within a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from benchmarks.harness.candidates import NAMES, wrap
from benchmarks.harness.isolated import IsolatedCandidate
from benchmarks.harness.measuring import ROUNDS, print_operators
from benchmarks.harness.operators_called import FIGURE
from benchmarks.harness.timing import Row, interleaved, print_rows
from benchmarks.models.floor import floor, print_shares
from benchmarks.models.selection import Selection, title
from benchmarks.models.zoo import Model, build, make_step, select

#: Seconds that a candidate is timed for in a round.
TARGET = 0.1


def openvino_step(row: Model) -> Callable[[], object]:
    """The model through OpenVINO itself: float32, as many threads as torch has."""
    import openvino

    module, inputs = build(row, "inference", "float32")
    with torch.no_grad():
        converted = openvino.convert_model(module, example_input=dict(inputs))
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    call = openvino.Core().compile_model(converted, "CPU", hints)
    arrays = [value.numpy() for value in inputs.values()]
    return lambda: call(arrays)


def prepare(model: str, mode: str, dtype: str, name: str) -> Callable[[], object]:
    """A candidate's step, called once so that it is compiled."""
    (row,) = select(model)
    native = name == "openvino"
    step = openvino_step(row) if native else make_step(row, mode, dtype, lambda module: wrap(name, module))
    step()
    return step


def measure(row: Model, mode: str, dtype: str, names: Iterable[str], rounds: int) -> list[Row]:
    """Rows of a case; a candidate that cannot run it is reported with its reason."""
    case = title(row, mode, dtype)
    made = {name: IsolatedCandidate(prepare, row.name, mode, dtype, name) for name in names}
    refused = []
    for name in list(made):
        try:
            made[name].ready()
        except RuntimeError as error:
            del made[name]
            refused.append(Row(case, name, float("nan"), {}, 0, str(error)))
    counts = {name: one.iterations(TARGET) for name, one in made.items()}
    found = interleaved(case, {name: partial(one.seconds, counts[name]) for name, one in made.items()}, rounds)
    for one in found:
        if one.candidate in NAMES:  # the others do not call torch's operators
            one.figures[FIGURE] = made[one.candidate].operators()
    for process in made.values():
        process.close()
    print_rows(found + refused)
    print_operators(found)
    return found + refused


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for."""
    selection = selection or Selection()
    rows: list[Row] = []
    for row, mode, dtype in selection.cases():
        names = selection.names(row, mode, dtype)
        found = measure(row, mode, dtype, names, selection.rounds_or(ROUNDS))
        if selection.floor:
            print_shares(floor(row, mode, dtype), found)
        selection.keep(found)
        rows += found
    return rows
