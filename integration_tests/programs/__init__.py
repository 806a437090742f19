"""Small programs, one function each, returning a `Case`; grouped by what they exercise."""

from collections.abc import Callable

from integration_tests.differential import Case
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

GROUPS = (
    control_flow, functions, language, objects, mutation, modules, tensors, training, recipes, breaks, failures, reruns,
)  # fmt: skip

PROGRAMS: dict[str, Callable[[], Case]] = {
    f"{group.__name__.rpartition('.')[2]}.{name}": make
    for group in GROUPS
    for name, make in vars(group).items()
    if callable(make) and getattr(make, "__module__", "") == group.__name__ and not isinstance(make, type)
    if not name.startswith("_")
}
