"""Trains a model on two processes with and without `compile_backward`; prints what `test_distributed_passes.py` reads.

`python -m integration_tests.autograd.distributed_passes KIND ...`
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import framesmith

STEPS = 4
KINDS = (
    "ddp",
    "ddp without_sync",
    "ddp, Python reducer",
    "ddp without_sync, Python reducer",
    "fsdp2",
    "fsdp2 compiled",
)


def distributed(kind: str, model: nn.Module) -> nn.Module:
    """Return the model, wrapped or sharded."""
    if kind.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)


def trained(kind: str, captured: bool, rank: int) -> dict[str, Any]:
    """Return the losses, the parameters, and which passes were captured."""
    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = distributed(kind, original)
    forward = framesmith.compile(model) if kind.endswith("compiled") else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found: dict[str, Any] = {"losses": [], "runs": 0, "fallbacks": []}
    for step in range(STEPS):
        torch.manual_seed(10 * rank + step)
        skips = "without_sync" in kind and step % 2 == 0
        without_sync: Any = model.no_sync() if skips else contextlib.nullcontext()  # type: ignore[operator]
        with without_sync, framesmith.compile_backward() if captured else contextlib.nullcontext() as seen:
            loss = forward(torch.randn(5 + step % 2, 8)).square().mean()
            loss.backward()
        if seen is not None:
            found["runs"] += seen.runs
            found["fallbacks"] += seen.fallbacks
        if not skips:
            optimizer.step()
            optimizer.zero_grad()
        found["losses"].append(loss.item())
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in original.parameters()]
    found["parameters"] = [one.detach().tolist() for one in whole]
    return found


def work(rank: int, port: int, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for kind in kinds:
        if kind.endswith("Python reducer"):
            from torch import _dynamo

            _dynamo.config.optimize_ddp = "python_reducer"
        found = [trained(kind, captured, rank) for captured in (False, True)]
        if rank == 0:
            print(json.dumps([kind, *found]), flush=True)
    dist.destroy_process_group()


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, args=(port, sys.argv[1:]), nprocs=2)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
