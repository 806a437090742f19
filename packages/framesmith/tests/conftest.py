"""Shared set-up: nothing is kept in the user's cache folder."""

from __future__ import annotations

import os
import tempfile

_CACHE = tempfile.TemporaryDirectory(prefix="framesmith-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
