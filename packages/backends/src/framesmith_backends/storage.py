"""Files of the user's cache folder: written whole or not at all, damage seen by a digest, no folder no harm.

The autotuner cache and machine code are among them: a folder that others may write to is not used. Beyond a size, the
code that nobody has read for the longest time is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
import tempfile
from pathlib import Path

from framesmith_backends.reporting import KERNEL_LOG, log_once

#: Bytes up to which files are kept, and how many are written between two looks at what there is.
MOST_BYTES, WRITES_BETWEEN = 256 << 20, 64
#: The end of names of machine code: these files are evicted.
CODE = ".o"
_writes = itertools.count()


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
    """The content written under that name; None if there is nothing, or if it is damaged."""
    where = folder()
    if where is None or not _is_private(where):
        return None
    try:
        digest, _, content = (where / name).read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest.decode("ascii", "replace") != hashlib.sha256(content).hexdigest():
        KERNEL_LOG.warning("%s is damaged and will be written again", where / name)
        return None
    with contextlib.suppress(OSError):  # a folder that may be read alone
        os.utime(where / name)
    return content


def write(name: str, content: bytes) -> bool:
    """Put the content there in one step; False where it cannot be written."""
    where, temporary = folder(), None
    if where is None:
        return False
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(where):
            return False
        if next(_writes) % WRITES_BETWEEN == 0:
            _evict(where)
        handle, temporary = tempfile.mkstemp(dir=where, prefix=f".{name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.replace(temporary, where / name)
    except OSError as error:
        KERNEL_LOG.debug("nothing is kept in %s: %s", where, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True


def _is_private(where: Path) -> bool:
    """Whether the folder is the user's, and nobody else may write to it; True where systems do not say."""
    if not hasattr(os, "getuid"):
        return True
    try:
        known = where.stat()
    except OSError:
        return False
    private = known.st_uid == os.getuid() and not known.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not private:
        log_once(f"{where} is not used: others may write there; chmod go-w makes it yours alone", KERNEL_LOG)
    return private


def _evict(where: Path) -> None:
    """Remove the machine code that nobody has read for longest, until three quarters of MOST_BYTES are left."""
    known = []
    for path in where.glob(f"*{CODE}"):
        with contextlib.suppress(OSError):  # another process was faster
            about = path.stat()
            known.append((about.st_mtime, about.st_size, path))
    total = sum(size for _, size, _ in known)
    if total <= MOST_BYTES:
        return
    for _, size, path in sorted(known):
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
        if total <= MOST_BYTES * 3 // 4:
            return
