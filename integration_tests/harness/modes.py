"""The table of modes that a call can be made under, and what is seen of a call."""

from __future__ import annotations

import functools
import io
import sys
import threading
import unittest.mock
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import framesmith

Run = Callable[..., Any]


class Logged(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    """Changes what a function gives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if func in (torch.sin, torch.Tensor.sin) else out


def logged(run: Run, x: torch.Tensor) -> Any:
    with Logged() as mode:
        out = run(x)
    return out, mode.seen


def doubled(run: Run, x: torch.Tensor) -> Any:
    with Doubling():
        return run(x)


def counted(run: Run, x: torch.Tensor) -> Any:
    with FlopCounterMode(display=False) as mode:
        out = run(x)
    return out, mode.get_total_flops()


def faked(run: Run, x: torch.Tensor) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        out = run(x)
    return tuple(out.shape), type(out).__name__, out.requires_grad


def made_fx(run: Run, x: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(run)(x)(x)


def traced(run: Run, x: torch.Tensor) -> Any:
    return torch.jit.trace(run, (x,), check_trace=False)(x)


def exported_old(run: Run, x: torch.Tensor) -> Any:
    module = run if isinstance(run, nn.Module) else Held(run)
    out = io.BytesIO()
    torch.onnx.export(module, (x,), out, dynamo=False)
    return len(out.getvalue()) > 100


def exported(run: Run, x: torch.Tensor) -> Any:
    module = run if isinstance(run, nn.Module) else Held(run)
    return torch.export.export(module, (x,)).module()(x)


def torch_compiled(run: Run, x: torch.Tensor) -> Any:
    return torch.compile(lambda v: run(v) * 2, backend="eager")(x)


def inside_of_ours(run: Run, x: torch.Tensor) -> Any:
    return framesmith.compile(lambda v: run(v) * 2)(x)


def vmapped(run: Run, x: torch.Tensor) -> Any:
    return torch.func.vmap(run)(torch.stack([x, x + 1]))


def gradient(run: Run, x: torch.Tensor) -> Any:
    return torch.func.grad(lambda v: run(v).sum())(x.detach())


def forward_mode(run: Run, x: torch.Tensor) -> Any:
    return torch.func.jvp(run, (x.detach(),), (torch.ones_like(x),))


def dual(run: Run, x: torch.Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.unpack_dual(run(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))))


def hooked_saves(run: Run, x: torch.Tensor) -> Any:
    packed: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(1), t.clone())[1], lambda t: t * 1):
        out = run(x)
    out.sum().backward()
    return out


def saved_on_cpu(run: Run, x: torch.Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        out = run(x)
    out.sum().backward()
    return out


def no_saves(run: Run, x: torch.Tensor) -> Any:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return run(x)


def checkpointed(run: Run, x: torch.Tensor, **options: Any) -> Any:
    out = checkpoint(run, x, **options)
    out.sum().backward()
    return out


def chosen(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


def selected(run: Run, x: torch.Tensor) -> Any:
    contexts = functools.partial(create_selective_checkpoint_contexts, chosen)
    return checkpointed(run, x, use_reentrant=False, context_fn=contexts)


def within(make: Callable[[], Any]) -> Callable[[Run, torch.Tensor], Any]:
    def around(run: Run, x: torch.Tensor) -> Any:
        with make():
            return run(x)

    return around


def backed(make: Callable[[], Any]) -> Callable[[Run, torch.Tensor], Any]:
    def around(run: Run, x: torch.Tensor) -> Any:
        with make():
            out = run(x)
            out.sum().backward()
        return out

    return around


def followed(setter: Callable[[Any], None]) -> Callable[[Run, torch.Tensor], Any]:
    def around(run: Run, x: torch.Tensor) -> Any:
        def follow(*event: Any) -> Any:
            return follow

        setter(follow)
        try:
            return run(x)
        finally:
            setter(None)

    return around


def threaded(run: Run, x: torch.Tensor) -> Any:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(run(x))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def deterministic(run: Run, x: torch.Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return run(x)
    finally:
        torch.use_deterministic_algorithms(False)


def functional(run: Run, x: torch.Tensor) -> Any:
    if not isinstance(run, nn.Module):
        return run(x)
    changed = {name: value.detach() + 1 for name, value in run.named_parameters()}
    return torch.func.functional_call(run, changed, (x,))


MODES: dict[str, Callable[[Run, torch.Tensor], Any]] = {
    "dispatch mode": logged,
    "torch-function mode": doubled,
    "flop counter": counted,
    "fake tensors": faked,
    "make_fx": made_fx,
    "jit.trace": traced,
    "onnx, old": exported_old,
    "torch.export": exported,
    "torch.compile": torch_compiled,
    "framesmith.compile": inside_of_ours,
    "vmap": vmapped,
    "func.grad": gradient,
    "func.jvp": forward_mode,
    "dual numbers": dual,
    "saved-tensor hooks": hooked_saves,
    "save_on_cpu": saved_on_cpu,
    "no saved-tensor hooks": no_saves,
    "checkpoint": functools.partial(checkpointed, use_reentrant=False),
    "reentrant checkpoint": functools.partial(checkpointed, use_reentrant=True),
    "selective checkpoint": selected,
    "default device": within(lambda: torch.device("cpu")),
    "another default device": backed(lambda: torch.device("meta")),
    "profiler": within(lambda: torch.profiler.profile(with_stack=True, record_shapes=True)),
    "anomaly detection": backed(torch.autograd.detect_anomaly),
    "autocast": backed(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "no_grad": within(torch.no_grad),
    "inference_mode": within(torch.inference_mode),
    "multithreading off": backed(lambda: torch.autograd.set_multithreading_enabled(False)),
    "sin replaced": within(lambda: unittest.mock.patch.object(torch, "sin", torch.cos)),
    "sys.settrace": followed(sys.settrace),
    "sys.setprofile": followed(sys.setprofile),
    "threads": threaded,
    "deterministic algorithms": deterministic,
    "functional_call": functional,
}

#: Modes that cannot trace Python's breaks, compiled or not: what is compiled only has to raise, too, or give the same.
WHOLE = {"torch.export"}


class Held(nn.Module):
    """A function as a module."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)  # type: ignore[no-any-return]


def outcome(around: Callable[[Run, torch.Tensor], Any], run: Any, x: torch.Tensor) -> Any:
    """Return the results and gradients, or the kind of error."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    if isinstance(run, nn.Module):
        run.zero_grad()
    try:
        out = around(run, x)
    except Exception as error:
        return f"raises {type(error).__name__}"
    grads = [parameter.grad for parameter in run.parameters()] if isinstance(run, nn.Module) else []
    return out, x.grad, grads, torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack()


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.allclose(one.float(), two.float(), rtol=1e-2, atol=1e-3)
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)
