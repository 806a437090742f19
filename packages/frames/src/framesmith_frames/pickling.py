"""Where pickles of wrapped functions come back to."""

from typing import TypeVar

T = TypeVar("T")


def restore(function: T) -> T:
    """The function a wrapper was pickled as: the one it wrapped."""
    return function
