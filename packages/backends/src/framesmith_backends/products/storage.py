"""Files of the user's cache folder: written whole or not at all, damage seen by a digest, no folder no harm."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

LOG = logging.getLogger("framesmith.kernels")


def folder() -> Path | None:
    """`framesmith` in $XDG_CACHE_HOME, or in ~/.cache; None where the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "framesmith"
    try:
        return Path.home() / ".cache" / "framesmith"
    except RuntimeError:
        return None


def read(name: str) -> bytes | None:
    """What was written under that name; None if there is nothing, or if it is damaged."""
    where = folder()
    if where is None:
        return None
    try:
        digest, _, content = (where / name).read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest.decode("ascii", "replace") != hashlib.sha256(content).hexdigest():
        LOG.warning("%s is damaged and will be written again", where / name)
        return None
    return content


def write(name: str, content: bytes) -> bool:
    """Put the content there in one step; False where it cannot be written."""
    where = folder()
    if where is None:
        return False
    try:
        where.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=where, prefix=f".{name}.")
    except OSError as error:
        LOG.debug("nothing is kept in %s: %s", where, error)
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.replace(temporary, where / name)
    except OSError as error:
        LOG.debug("nothing is kept in %s: %s", where, error)
        Path(temporary).unlink(missing_ok=True)
        return False
    return True
