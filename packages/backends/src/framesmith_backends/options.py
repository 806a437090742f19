"""Checking of a backend's arguments at the door: roles and options, with the nearest valid name in the error."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from typing import Final, NamedTuple

from framesmith_aten.contract import ROLES
from framesmith_guards import warn_user


class Renamed(NamedTuple):
    """The present name of a deprecated option, and the present names of its values."""

    name: str
    values: Mapping[object, object]


#: Deprecated options of all backends.
RENAMED: Final[Mapping[str, Renamed]] = {"images": Renamed("layout", {"auto": "channels_last"})}  # old-name
#: Deprecated values of options, and their present names.
RENAMED_VALUES: Final[Mapping[tuple[str, object], str]] = {("matmul", "own"): "native"}  # old-name


def present_options(given: Mapping[str, object]) -> dict[str, object]:
    """Return the options and values under their present names; the first use of each deprecated name warns.

    Raises ValueError for an option given under both names.
    """
    found: dict[str, object] = {}
    for name, value in given.items():
        renamed = RENAMED.get(name)
        if renamed is not None:
            if renamed.name in given:
                raise ValueError(f"option {name!r} is the deprecated name of {renamed.name!r}: give one of them")
            _warn_once(f"option {name!r}", renamed.name)
            name, value = renamed.name, renamed.values.get(value, value)
        if isinstance(value, str) and (present := RENAMED_VALUES.get((name, value))) is not None:
            _warn_once(f"value {value!r} of option {name!r}", present)
            value = present
        found[name] = value
    return found


@functools.cache
def _warn_once(old: str, present: str) -> None:
    warn_user(FutureWarning(f"{old} is deprecated: use {present!r}"))


def check_role(role: str, backend: str) -> None:
    if role not in ROLES:
        raise ValueError(
            f"backend {backend!r} has no role {role!r}: expected one of {list(ROLES)}{nearest(role, ROLES)}"
        )


def checked_options(
    given: Mapping[str, object] | None,
    defaults: Mapping[str, object],
    choices: Mapping[str, tuple[object, ...]],
    backend: str,
) -> dict[str, object]:
    """The defaults overridden by `given`; a ValueError for an unknown option or a value not among its choices."""
    found = dict(defaults)
    for name, value in present_options(given or {}).items():
        if name not in defaults:
            raise ValueError(
                f"backend {backend!r} has no option {name!r}: expected one of {sorted(defaults)}"
                f"{nearest(name, defaults)}"
            )
        if name in choices and value not in choices[name]:
            raise ValueError(
                f"option {name!r} of backend {backend!r} is {value!r}: expected one of {list(choices[name])}"
                f"{nearest(str(value), [str(c) for c in choices[name]])}"
            )
        found[name] = value
    return found


def nearest(name: str, known: object) -> str:
    close = difflib.get_close_matches(name, list(known), 1)  # type: ignore[call-overload]
    return f" (did you mean {close[0]!r}?)" if close else ""
