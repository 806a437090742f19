"""Imports all that the registry's models need, for processes that are copied: no data, so that no threads start."""

from __future__ import annotations

import torch

from benchmarks.models.zoo import MODELS

with torch.device("meta"):
    for row in MODELS:
        row.build()
