"""Effects that are not on containers, around graphs, breaks and errors: all that eager mode shows, in its order.

A quarter of the operations, and of the ways to leave a generator; in long runs, `FRAMESMITH_LONG=1`, all.
"""

from __future__ import annotations

import functools
import types

import pytest

from integration_tests.harness.differential import check_strictly
from integration_tests.harness.sweeps import a_part, in_turn
from integration_tests.programs import make_afresh, programs_of
from integration_tests.programs.side_effects import (
    attribute_breaks,
    attribute_uses,
    descriptors,
    generators,
    hooks,
    module_attributes,
    module_hooks,
    objects,
    tensors,
)

OPERATIONS = [
    pytest.param(group, name, id=name) for group in (tensors, descriptors, objects) for name in programs_of(group)
]
LEFT = list(programs_of(generators))
WRITTEN = [
    (group, name)
    for group in (hooks, module_hooks, attribute_breaks, attribute_uses, module_attributes)
    for name in programs_of(group)
]
#: The operations that break: on the flags, the data and the history of tensors, on classes, on weak references.
BREAK = {
    "require_grad", "require_none", "toggle", "flag_of_a_result", "flag_of_detached", "flag_of_no_leaf",
    "flag_of_numbers", "detach_in_place", "set_data", "data_left_behind", "data_of_another_shape", "retain",
    "grad_of_another_dtype", "grad_of_another_shape", "grad_that_is_itself", "grad_that_is_none_of_tensors",
    "hide_a_method", "hide_and_call", "hide_by_builtins", "write_to_flags", "write_to_metadata", "by_tensor_dict",
    "reorder", "counter", "list", "method_added", "property_added", "through_type", "attribute", "class_replaced",
    "dict_replaced", "by_descriptor", "refused_with_slots", "callback", "kept", "new", "proxy", "set_of_links",
}  # fmt: skip
#: Objects that cannot be made in a trace.
NEVER_NEW = {"parameter", "leaf_with_grad", "linked"}
#: Those of which one flag or the other is what it was, or where plain data takes the place of a class's plain data.
SOMETIMES = {("buffer", "require_none"), ("parameter", "require_grad"), ("derived", "counter")}
#: Those that break or not, by where the object was made.
EITHER = {
    ("buffer", "flag_of_a_result"), ("buffer", "flag_of_numbers"), ("buffer", "set_data"),
    ("parameter", "flag_of_a_result"),
}  # fmt: skip
#: The ways of leaving a generator that break: behind them it is needed as an object, or they print.
LASTING = {
    "across_a_break", "behind_a_break", "given_back", "kept_in_a_list", "kept_until_the_next_call", "loop_with_a_break",
}  # fmt: skip


def test_there_are_enough_programs() -> None:
    assert len(OPERATIONS) >= 400 and len(LEFT) >= 450 and len(WRITTEN) >= 95


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("group", "name"), a_part(OPERATIONS, 4))
def test_an_operation(group: types.ModuleType, name: str) -> None:
    counters = check_strictly(functools.partial(make_afresh, group.__name__, name))
    holder, operation, place = name.split("__")
    breaks = operation in BREAK and (holder, operation) not in SOMETIMES
    breaks |= place == "around_breaks" or (place == "new_one" and holder in NEVER_NEW)
    if (
        operation != "name_dimensions" and (holder, operation) not in EITHER
    ):  # tensors with names are left to eager mode
        assert (counters["breaks"] > 0) is breaks, counters


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", a_part(LEFT, 4))
def test_a_generator(name: str) -> None:
    counters = check_strictly(functools.partial(make_afresh, generators.__name__, name))
    way = name.split("__")[1]
    if way != "raised_to_the_caller":
        assert (counters["breaks"] > 0) is (way in LASTING), counters


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("program", "backend"),
    in_turn(WRITTEN, ["eager", "auto"]),
    ids=lambda one: one if isinstance(one, str) else one[1],
)
def test_a_written_program(program: tuple[types.ModuleType, str], backend: str) -> None:
    group, name = program
    make = functools.partial(make_afresh, group.__name__, name)
    check_strictly(make, backend=backend, cold=backend == "eager")


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", [name for name in programs_of(tensors) if name.endswith("one_graph")])
def test_an_operation_on_tensors_with_kernels(name: str) -> None:
    check_strictly(functools.partial(make_afresh, tensors.__name__, name), backend="auto")
