"""Reports of backends: the logs of plans and of kernels, and warnings given once."""

from __future__ import annotations

import functools
import logging

PLANS = logging.getLogger("framesmith.plan")
KERNELS = logging.getLogger("framesmith.kernels")


@functools.cache
def warn_once(text: str, log: logging.Logger = PLANS) -> None:
    """Warn the user, once in a process, that something does not do what it is for."""
    log.warning("%s", text)
