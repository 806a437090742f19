from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

OPCODES: dict[str, int]
SHAPE_OPERATORS: dict[str, int]
PROPERTIES: dict[str, int]
MODES: dict[str, int]

class Program:
    @property
    def __framesmith_check__(self) -> object: ...
    @property
    def blocks(self) -> tuple[tuple[int, int, bool], ...]: ...
    def load(self, description: tuple[Any, ...], /) -> None: ...
    def kill(self) -> None: ...
    def run_extract(self, args: tuple[object, ...], function: FunctionType, /) -> tuple[object, ...] | None: ...
    def __call__(self, args: tuple[object, ...], function: FunctionType, /) -> bool: ...

class BackwardCall:
    otherwise: Callable[..., Any]
    def __new__(
        cls,
        otherwise: Callable[..., Any],
        unusual: tuple[Callable[[], object], ...],
        retained: Callable[[], object],
        dropped: tuple[str, ...],
        arrange: Callable[[torch.Tensor, Any], torch.Tensor],
        program: Callable[[list[Any]], Any],
        saved: int,
        numbers: str | None,
        plain: type[torch.Tensor],
        tangents: tuple[tuple[int, tuple[int, ...] | list[int]] | None, ...],
        results: tuple[int, ...],
    ) -> BackwardCall: ...
    def __call__(self, node: Any, /, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]: ...

def interned_lookups(base: type, names: tuple[str, ...], /) -> type: ...
def tensors_setup(
    library: str,
    base: type,
    requires_grad: object,
    probes: tuple[tuple[torch.Tensor, int, int, tuple[int, ...], int, int], ...],
    /,
) -> str | None: ...
def tensors_probe(tensor: torch.Tensor, /) -> tuple[int, int, int, int, bytes]: ...
def tensors_device_type(name: str, /) -> int | None: ...
def tensors_use_bytes(usable: bool, /) -> None: ...
def leaves_setup(
    descriptors: tuple[object, ...], probes: tuple[torch.Tensor, ...], /
) -> tuple[bool, bool, bool, bool]: ...
def modes_find(dispatch_key: int, tracing_key: int, /) -> int: ...
def modes_read() -> int: ...
