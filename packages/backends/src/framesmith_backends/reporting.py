"""Where backends tell what they do: the logs of plans and of kernels, and what users are told once."""

from __future__ import annotations

import functools
import logging

PLANS = logging.getLogger("framesmith.plan")
KERNELS = logging.getLogger("framesmith.kernels")


@functools.cache
def warn_once(text: str, log: logging.Logger = PLANS) -> None:
    """Tell the user, once in a process, that something does not do what it is for."""
    log.warning("%s", text)
