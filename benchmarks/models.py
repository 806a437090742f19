"""Whole models of the registry: steps per second, candidates interleaved within a round."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from benchmarks.candidates import wrap
from benchmarks.floor import floor, print_shares
from benchmarks.harness import Row
from benchmarks.measuring import ROUNDS, measure
from benchmarks.selection import Selection, title
from benchmarks.zoo import Model, build, make_step


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


def prepare(row: Model, mode: str, dtype: str, name: str) -> Callable[[], object]:
    """A candidate's step, called once so that it is compiled."""
    native = name == "openvino"
    step = openvino_step(row) if native else make_step(row, mode, dtype, lambda module: wrap(name, module))
    step()
    return step


def run(selection: Selection | None = None) -> list[Row]:
    """All cases asked for; a candidate that cannot run one is reported with its reason."""
    selection = selection or Selection()
    rows: list[Row] = []
    for row, mode, dtype in selection.cases():
        case, names = title(row, mode, dtype), selection.names(row, mode, dtype)
        step_of = functools.partial(prepare, row, mode, dtype)
        found = measure(case, names, step_of, rounds=selection.rounds_or(ROUNDS), target=0.1)
        if selection.floor:
            print_shares(floor(row, mode, dtype), found)
        selection.keep(found)
        rows += found
    return rows
