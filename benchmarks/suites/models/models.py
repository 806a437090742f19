"""Whole models of the registry: seconds of a step, candidates in processes of their own, interleaved within a round."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.harness.candidates import wrap
from benchmarks.harness.measuring import ROUNDS, measure_isolated, print_operators
from benchmarks.harness.timing import Row
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


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for."""
    selection = selection or Selection()
    rows: list[Row] = []
    for row, mode, dtype in selection.cases():
        names = selection.names(row, mode, dtype)
        case, rounds = title(row, mode, dtype), selection.rounds_or(ROUNDS)
        found = measure_isolated(case, names, prepare, row.name, mode, dtype, rounds=rounds, target=TARGET)
        print_operators(found)
        if selection.floor:
            print_shares(floor(row, mode, dtype), found)
        selection.keep(found)
        rows += found
    return rows
