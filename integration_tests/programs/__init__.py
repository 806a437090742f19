"""Small programs, one function each, returning a `Case`; grouped by what they exercise.

Each is made from a copy of its module that is executed then, so that what a program does to its module's globals and
classes is not there for the next.
"""

import functools
import importlib.util
import inspect
import marshal
import sys
import types
from collections.abc import Callable

from integration_tests.differential import Case
from integration_tests.families import Family
from integration_tests.programs import (
    breaks,
    control_flow,
    custom_operators,
    failing_operators,
    failures,
    functions,
    holders_classes,
    holders_containers,
    holders_functions,
    holders_memory,
    holders_names,
    holders_networks,
    holders_objects,
    inference,
    language,
    modules,
    mutation,
    objects,
    random_operators,
    recipes,
    reruns,
    tensors,
    training,
)

GROUPS = (
    control_flow, functions, language, objects, mutation, modules, tensors, training, recipes, breaks, failures, reruns,
    holders_names, holders_classes, holders_objects, holders_functions, holders_containers,
    holders_networks, holders_memory, inference, random_operators, failing_operators,
    custom_operators,
)  # fmt: skip


def programs_of(group: types.ModuleType) -> dict[str, Callable[[], Case]]:
    """The programs a module has: those of its family, or each of its public functions."""
    family = getattr(group, "family", None)
    if isinstance(family, Family):
        return family.programs
    return {
        name: make
        for name, make in vars(group).items()
        if isinstance(make, types.FunctionType) and make.__module__ == group.__name__ and not name.startswith("_")
    }


@functools.cache
def code_of(group: str) -> bytes:
    """A module's code, to be loaded anew for each copy: what is compiled is kept at code objects."""
    source, file = inspect.getsource(sys.modules[group]), inspect.getfile(sys.modules[group])
    return marshal.dumps(compile(source, file, "exec"))


def make_afresh(group: str, name: str) -> Case:
    """Execute a copy of the module `group`, which takes its place, and make one of its programs."""
    spec = importlib.util.find_spec(group)
    assert spec is not None
    copy = importlib.util.module_from_spec(spec)
    code = code_of(group)
    sys.modules[group] = copy
    exec(marshal.loads(code), vars(copy))
    return programs_of(copy)[name]()


def full_name(group: types.ModuleType, name: str) -> str:
    """What a program is called among all."""
    return f"{group.__name__.rpartition('.')[2]}.{name}"


PROGRAMS: dict[str, Callable[[], Case]] = {
    full_name(group, name): functools.partial(make_afresh, group.__name__, name)
    for group in GROUPS
    for name in programs_of(group)
}
FAMILIES = {full_name(group, name) for group in GROUPS if hasattr(group, "family") for name in group.family.programs}
WARM_ONLY = {full_name(group, name) for group in GROUPS if hasattr(group, "family") for name in group.family.warm_only}
