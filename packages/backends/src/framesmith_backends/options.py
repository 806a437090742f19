"""Checking of a backend's arguments at the door: roles and options, with the nearest valid name in the error."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from framesmith_aten.contract import ROLES
from framesmith_guards import warn_user


class Renamed(NamedTuple):
    """The present name of a deprecated option, and the present names of its values."""

    name: str
    values: Mapping[str, str]


#: Deprecated options; of a backend that declares the present name alone.
RENAMED: Final[Mapping[str, Renamed]] = {"images": Renamed("layout", {"auto": "channels_last"})}  # old-name
#: Deprecated values of options, and their present names.
RENAMED_VALUES: Final[Mapping[tuple[str, object], str]] = {("matmul", "own"): "native"}  # old-name


def present_options(given: Mapping[str, object], declared: Collection[str]) -> dict[str, object]:
    """Return the options under the names that a backend declares; the first use of each deprecated name warns.

    Raises ValueError for an option given under both names.
    """
    found: dict[str, object] = {}
    for name, value in given.items():
        renamed = None if name in declared else RENAMED.get(name)
        if renamed is not None and renamed.name in declared:
            if renamed.name in given:
                raise ValueError(f"option {name!r} is the deprecated name of {renamed.name!r}: give one of them")
            _warn_once(f"option {name!r}", renamed.name)
            name, value = renamed.name, renamed.values.get(value, value) if isinstance(value, str) else value
        found[name] = value
    return found


def _present_value(name: str, value: object, choices: Collection[object]) -> object:
    """Return a deprecated value of an option that has no such choice under its present name, and warn."""
    present = RENAMED_VALUES.get((name, value)) if isinstance(value, str) and value not in choices else None
    if present is None or present not in choices:
        return value
    _warn_once(f"value {value!r} of option {name!r}", present)
    return present


@functools.cache
def _warn_once(old: str, present: str) -> None:
    warn_user(FutureWarning(f"{old} is deprecated: use {present!r}"))


def check_among(value: object, known: Collection[object], problem: str) -> None:
    """Raise ValueError, with the nearest of the known values, for another one."""
    if value not in known:
        close = difflib.get_close_matches(str(value), map(str, known), 1)
        nearest = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"{problem}: expected one of {list(known)}{nearest}")


def check_role(role: str, backend: str) -> None:
    check_among(role, ROLES, f"backend {backend!r} has no role {role!r}")


def checked_options(
    given: Mapping[str, object] | None,
    defaults: Mapping[str, object],
    choices: Mapping[str, tuple[object, ...]],
    backend: str,
) -> dict[str, object]:
    """The defaults overridden by `given`; a ValueError for an unknown option or a value not among its choices."""
    found = dict(defaults)
    for name, value in present_options(given or {}, defaults).items():
        check_among(name, sorted(defaults), f"backend {backend!r} has no option {name!r}")
        known = choices.get(name, (value,))
        found[name] = _present_value(name, value, known)
        check_among(found[name], known, f"option {name!r} of backend {backend!r} is {value!r}")
    return found
