"""Makes torchvision importable beside any build of torch, for its models and for transformers, which imports it.

Nothing is kept in the user's cache folder.
"""

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from framesmith_backends.passes import EVERYWHERE
from framesmith_backends.pipeline import verify_after
from tools.warm_process import preload

CACHE = tempfile.TemporaryDirectory(prefix="framesmith-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
EVERYWHERE.append(verify_after)  # the IR is verified after each pass of every compile
preload("torch", "framesmith")

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def declare_operators() -> None:
    """Declare what torchvision's Python registers fake kernels for, where its own library does not load.

    A wheel's library is built for one build of torch; its Python serves any, and classification models need no more.
    """
    package = importlib.util.find_spec("torchvision")
    folders = [] if package is None else list(package.submodule_search_locations or [])
    for library in [path for folder in folders for path in Path(folder).glob("_C*.so")]:
        try:
            torch.ops.load_library(library)
        except OSError:
            LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


declare_operators()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is compiled before a test nor left by it, and random numbers begin at a fixed seed."""
    import framesmith  # after the environment variables are set above

    framesmith.reset()
    torch.manual_seed(0)
    yield
    framesmith.reset()
