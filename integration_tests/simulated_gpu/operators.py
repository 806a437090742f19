"""ATen's operators for CUDA tensors whose memory is the host's: computed by the CPU's kernels on that memory.

Whatever torch has a CUDA kernel for is replaced, but what only makes tensors and views. During a capture nothing is
computed: results are made as torch's fake tensors have them, and the call is noted for replays.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from integration_tests.simulated_gpu import composed
from integration_tests.simulated_gpu.device import FAILED
from integration_tests.simulated_gpu.memory import extent, is_on_gpu, is_view, on_host
from integration_tests.simulated_gpu.not_built import NotBuilt
from integration_tests.simulated_gpu.random_numbers import Drawn, Generators

#: Theirs need no kernel.
KEPT = (
    "empty.memory_format", "empty_strided", "as_strided", "view", "view.dtype", "_reshape_alias", "resize_", "unfold",
    "_local_scalar_dense", "record_stream", "is_set_to", "set_", "set_.source_Storage",
    "set_.source_Storage_storage_offset", "set_.source_Tensor", "view_as_real", "view_as_complex",
    "_efficientzerotensor",
)  # fmt: skip
#: Reach their kernels beside the dispatcher's table.
ADDED = ("copy_", "convolution")
#: A number of `torch.cuda.get_sync_debug_mode`: what waits for the device is an error.
NO_WAITING = 2
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
Kernel = Callable[..., Any]


class Operators:
    """`runtime` and `driver` are the stand-ins' libraries."""

    def __init__(self, runtime: ctypes.CDLL, driver: ctypes.CDLL) -> None:
        self.driver = driver
        self.generators = Generators(runtime)
        self.library = torch.library.Library("aten", "IMPL")
        self.errors: list[str] = []
        #: Calls of live graphs, by number, with the name that the driver reports.
        self.replays: dict[int, tuple[Call, bytes]] = {}
        self.numbers = itertools.count(1)
        self.callbacks = _CALL(self._replay), _CALL(self._forget)
        driver.sim_set_replayer(*self.callbacks)
        atexit.register(driver.sim_set_replayer, None, None)

    def install(self, disable: Callable[[Kernel], Kernel]) -> None:
        """Put them in the place of torch's; `disable` keeps them from being compiled."""
        names = [
            name.removeprefix("aten::")
            for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            for name in dict.fromkeys([*names, *ADDED, *composed.KERNELS]):
                op = _overload(name)
                if name in KEPT or op is None or "_nested" in name:
                    continue
                kernel = disable(functools.partial(self.run, op, composed.KERNELS.get(name, op)))
                self.library.impl(name, kernel, "CUDA", allow_override=True)

    def run(self, op: Any, kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        """Compute the operator for arguments on the GPU; `kernel` does it for such on the CPU."""
        with _plainly():
            _refuse_waiting(op, args, kwargs)
            given = {a.name: v for a, v in zip(op._schema.arguments, args)} | kwargs
            random = torch.Tag.nondeterministic_seeded in op.tags
            drawn = self.generators.draw(given.get("generator")) if random else None
            call = Call(op, kernel, args, kwargs, drawn)
            if not torch.cuda.is_current_stream_capturing():
                return call.results()
            found = call.planned(args, kwargs)
            self._record(call)
            return found

    def _record(self, call: Call) -> None:
        """For replays of the graph that is being captured."""
        number, name = next(self.numbers), str(call.op).encode()
        self.replays[number] = call, name
        used = [t.data_ptr() for t in (*call.hosts, *call.targets, *call.buffers)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        addresses = (ctypes.c_void_p * len(used))(*used)
        self.driver.sim_record(stream, ctypes.c_void_p(number), name, addresses, len(used))

    def _replay(self, number: int) -> None:
        try:
            with _plainly():
                self.replays[number][0].replay()
        except Exception:
            self.errors.append(traceback.format_exc())
            self.driver.sim_fail(FAILED)

    def _forget(self, number: int) -> None:
        self.replays.pop(number, None)


class Call:
    """One call of an operator: `results` computes them, `planned` leaves that to `replay`."""

    def __init__(
        self, op: Any, kernel: Kernel, args: Sequence[Any], kwargs: dict[str, Any], drawn: Drawn | None
    ) -> None:
        self.op, self.drawn = op, drawn
        self.kernel = op.overloadpacket if kernel is op and _has_plain_number(op, args) else kernel
        outs = [a.name for a in op._schema.arguments if a.is_out and a.name in kwargs]
        inputs = [*args, *(v for k, v in kwargs.items() if k not in outs)]
        found = {id(t): (t, on_host(t)) for t in tree_leaves(inputs) if is_on_gpu(t)}
        self.owners: list[tuple[torch.Tensor, torch.Tensor]] = list(found.values())
        self.hosts = [host for _, host in self.owners]

        def taken(value: Any) -> Any:
            if id(value) in found:
                return found[id(value)][1]
            return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

        self.args = tree_map(taken, args)
        self.kwargs = {k: tree_map(taken, v) for k, v in kwargs.items() if k not in (*outs, "pin_memory")}
        self.targets = [t for name in outs for t in tree_leaves(kwargs[name])]
        #: Results for `targets` are computed separately: these may have to be given their size.
        self.separate = {name: tree_map(lambda t: torch.empty(0, dtype=t.dtype), kwargs[name]) for name in outs}
        #: Results of a planned call that are memory of their own.
        self.buffers: list[torch.Tensor] = []

    def _compute(self) -> Any:
        kwargs = {**self.kwargs, **self.separate}
        try:
            if self.drawn is None:
                return self.kernel(*self.args, **kwargs)
            return self.drawn.run(self.op, self.kernel, self.args, kwargs)
        except NotBuilt:
            raise
        except NotImplementedError as error:  # of CPUs: they have no such kernel, or none of the type
            found = composed.in_wide_type(self.op, *self.args, **kwargs) if self.drawn is None else NotImplemented
            if found is not NotImplemented:
                return found
            raise NotBuilt(f"{self.op} of {', '.join(sorted({str(t.dtype)[6:] for t in self.hosts}))}") from error

    def results(self) -> Any:
        """The results, on the GPU."""
        computed = self._compute()
        if not self.targets:
            return tree_map(self._on_gpu, computed)
        for target, value in zip(self.targets, tree_leaves(self.separate), strict=True):
            if target.shape != value.shape:
                target.resize_(value.shape)
            on_host(target).copy_(value)
        return self.targets[0] if len(self.targets) == 1 else tuple(self.targets)

    def planned(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results, on the GPU, with nothing in them; who replays does not hold tensors, only their memory."""
        mode = FakeTensorMode()
        given = {id(t): t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        fakes = {at: mode.from_tensor(t) for at, t in given.items()}
        originals = {id(fakes[at]): t for at, t in given.items()}

        def faked(value: Any) -> Any:
            return fakes.get(id(value), value)

        with mode:
            found = self.op(*tree_map(faked, args), **{k: tree_map(faked, v) for k, v in kwargs.items()})

        def made(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            original = originals.get(id(value))
            if original is None:
                there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
                self.buffers.append(there)
                return there
            if original.shape != value.shape:
                original.resize_(value.shape)
            return original

        returned = tree_map(made, found)
        self.targets, self.buffers = ([on_host(t) for t in tensors] for tensors in (self.targets, self.buffers))
        self.owners.clear()
        return returned

    def _on_gpu(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for tensor, host in self.owners:
            if value is host:
                return tensor
        if value.layout is not torch.strided or (value.numel() and not value.data_ptr()):
            raise NotBuilt(f"{self.op} gives a tensor without memory of its own")
        for tensor, host in self.owners:
            if is_view(value, host):
                return torch.as_strided(tensor, value.shape, value.stride(), value.storage_offset())
        there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
        ctypes.memmove(there.data_ptr(), value.data_ptr(), extent(value))
        return there

    def replay(self) -> None:
        """Compute what was planned."""
        computed = self._compute()
        if self.targets:
            for target, value in zip(self.targets, tree_leaves(self.separate), strict=True):
                target.copy_(value)
            return
        found = [t for t in tree_leaves(computed) if isinstance(t, torch.Tensor)]
        fresh = [t for t in found if not any(is_view(t, host) for host in self.hosts)]
        for place, value in zip(self.buffers, fresh, strict=True):
            place.copy_(value)


@contextmanager
def _plainly() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())  # type: ignore[no-untyped-call]
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch._C._DisableAutocast())
        yield


def _refuse_waiting(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Operators that wait for the device are refused where that is forbidden."""
    waits = torch.Tag.dynamic_output_shape in op.tags or op is torch.ops.aten.equal.default
    if op is torch.ops.aten.copy_.default:
        to, source, *rest = args
        waits = to.device != source.device and not (rest[0] if rest else kwargs.get("non_blocking"))
    if waits and torch.cuda.get_sync_debug_mode() == NO_WAITING:
        raise RuntimeError("called a synchronizing CUDA operation")
    if waits:
        torch.cuda.current_stream().synchronize()  # an error during a capture


def _has_plain_number(op: Any, args: Sequence[Any]) -> bool:
    """Whether a number stands where a tensor is declared: it does not count for the type of the result."""
    pairs = zip(op._schema.arguments, args)
    return any(isinstance(v, (int, float, complex)) and str(a.type) == "Tensor" for a, v in pairs)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return getattr(found, overload or "default", None)
