"""Makes the helpers beside the tests importable, and keeps torch to one thread."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tools.warm_process import preload

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
preload("torch", "framesmith_aten")
