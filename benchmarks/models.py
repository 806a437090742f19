"""Whole models of the registry: steps per second, candidates interleaved within a round."""

from __future__ import annotations

from collections.abc import Callable

import torch

import framesmith
from benchmarks.candidates import wrap
from benchmarks.floor import print_floor
from benchmarks.harness import Row, compare, print_rows
from benchmarks.operators_called import FIGURE, operators_called
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
        torch.compiler.reset()  # a model's code is compiled anew in each case, and its compilations are counted
        framesmith.reset()
        case, steps, refused = title(row, mode, dtype), {}, []
        for name in selection.names(row, mode, dtype):
            try:
                steps[name] = prepare(row, mode, dtype, name)
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                refused.append(Row(case, name, float("nan"), {}, 0, reason))
        found = compare(case, steps, rounds=selection.rounds, target=0.1) + refused if steps else refused
        for one in found:
            if one.candidate != "openvino" and not one.reason:
                one.figures[FIGURE] = operators_called(steps[one.candidate])
        print_rows(found)
        calls = "  ".join(f"{one.figures[FIGURE]} {one.candidate}" for one in found if FIGURE in one.figures)
        print(f"    {FIGURE}: {calls}", flush=True)
        if selection.floor and steps:
            print_floor(row, mode, dtype, found)
        selection.keep(found)
        rows += found
    return rows
