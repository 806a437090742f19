"""Supported releases of torch: an error below the oldest, a warning above the newest tested one.

The packages' metadata has the same floor, and no cap: see docs/design/frontend/0034-unstable-torch-names.md.
"""

from __future__ import annotations

import re
import warnings
from typing import Final

import torch

Release = tuple[int, int]

#: The oldest release that is supported: the floor of every pyproject.toml.
OLDEST: Final[Release] = (2, 11)
#: The newest release with which all tests have been run.
NEWEST_TESTED: Final[Release] = (2, 15)


class NewTorchWarning(UserWarning):
    """This torch is newer than the newest one that framesmith has been tested with."""


def release_of(version: str) -> Release | None:
    """The major and minor number of a version; None for a text that is none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def check_release(version: str) -> None:
    """Warn of a torch that is newer than all that were tested; ImportError for one that is older than supported."""
    release = release_of(version)
    if release is None:
        return
    if release < OLDEST:
        raise ImportError(f"framesmith needs torch {_text(OLDEST)} or newer; torch {version} is installed")
    if release > NEWEST_TESTED:
        warnings.warn(
            f"framesmith is tested with torch {_text(OLDEST)} to {_text(NEWEST_TESTED)}; torch {version} is newer. "
            "Missing names are in the log 'framesmith.torch'; functions that need them run eagerly",
            NewTorchWarning,
            stacklevel=4,  # where framesmith is imported
        )


def _text(release: Release) -> str:
    return ".".join(map(str, release))


check_release(torch.__version__)
