"""Small programs, one function each, returning a `Case`; grouped by what they exercise."""

from collections.abc import Callable

from integration_tests.differential import Case
from integration_tests.programs import breaks, control_flow, functions, modules, mutation, recipes, training

PROGRAMS: dict[str, Callable[[], Case]] = {
    f"{group.__name__.rpartition('.')[2]}.{name}": make
    for group in (control_flow, functions, mutation, modules, training, recipes, breaks)
    for name, make in vars(group).items()
    if callable(make) and getattr(make, "__module__", "") == group.__name__ and not isinstance(make, type)
    if not name.startswith("_")
}
