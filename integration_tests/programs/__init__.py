"""Small programs, one function each, returning a `Case`, or made by rule in a `Family`; grouped by what they exercise.

Each is made from a copy of its module that is executed then, so that what a program does to its module's globals and
classes is not there for the next.
"""

import functools
import importlib.util
import inspect
import marshal
import sys
import types
from collections.abc import Callable, Iterable

from integration_tests.harness.differential import Case
from integration_tests.programs import (
    breaks,
    control_flow,
    failures,
    functions,
    language,
    modules,
    mutation,
    objects,
    recipes,
    reruns,
    tensors,
    training,
)
from integration_tests.programs.families import Family
from integration_tests.programs.guarded_state import (
    classes,
    containers,
    descriptors,
    memory,
    metaclasses,
    names,
    network_structure,
    networks,
    special_methods,
)
from integration_tests.programs.guarded_state import functions as held_functions
from integration_tests.programs.guarded_state import objects as held_objects
from integration_tests.programs.in_place import in_modes
from integration_tests.programs.operators import custom, failing, random_numbers

GROUPS = (
    control_flow, functions, language, objects, mutation, modules, tensors, training, recipes, breaks, failures, reruns,
    names, classes, metaclasses, descriptors, special_methods, held_objects, held_functions, containers, networks,
    network_structure, memory, in_modes, random_numbers, failing, custom,
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
    """Return a module's code, to be loaded again for each copy: compiled entries are stored at code objects."""
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
    """Return the full name of a program."""
    return f"{group.__name__.removeprefix(__name__ + '.')}.{name}"


def names_in_families(members: Callable[[Family], Iterable[str]]) -> set[str]:
    """The full names of these members of every family."""
    families = [(group, getattr(group, "family", None)) for group in GROUPS]
    return {full_name(group, name) for group, family in families if family is not None for name in members(family)}


PROGRAMS: dict[str, Callable[[], Case]] = {
    full_name(group, name): functools.partial(make_afresh, group.__name__, name)
    for group in GROUPS
    for name in programs_of(group)
}
IN_FAMILIES = names_in_families(lambda family: family.programs)
WARM_ONLY = names_in_families(lambda family: family.warm_only)
