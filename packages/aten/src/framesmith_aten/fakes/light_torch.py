"""Torch's own functions rebuilt so that they run without importing torch._dynamo (1.1 s, once per process).

Note [Rebuilt functions]: making a FakeTensorMode, and a fake from a real tensor, imports torch._dynamo inside torch,
for two configuration values and a few marker classes; so do gradients under `torch.func`, to switch off torch._dynamo's
own switches. A rebuilt function has the same code and other globals, whose `__import__` answers those names with small
equivalents while torch._dynamo is not loaded, and with torch's own otherwise. Nothing global changes: no entry of
`sys.modules`, no attribute of torch, so that other threads and a later real import are not affected. A name without an
equivalent is imported for real.
"""

from __future__ import annotations

import builtins
import enum
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Final, TypeVar

import torch

from framesmith_guards.needs import report_missing
from framesmith_guards.torch_adapter import TorchDispatchMode, TorchGuardSource, TorchSource

_REPLACED: Final = "torch._dynamo"

F = TypeVar("F", bound=Callable[..., Any])


class LightDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that runs operators by `dispatch`, without an import of torch._dynamo.

    Torch wraps a `__torch_dispatch__` of the class body in a function that imports it (a second) at its first call.
    """

    dispatch: Callable[..., Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        cls.__torch_dispatch__ = cls.dispatch  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Stand(ModuleType):
    """A module with a few names of its own; others are the real module's, imported on demand."""

    def __init__(self, name: str, own: Mapping[str, object]) -> None:
        super().__init__(name)
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


class NamedSource(TorchSource):
    """A torch source that is only a name."""

    def __init__(self, name: str) -> None:
        self._text = name

    @property
    def guard_source(self) -> Any:
        return TorchGuardSource.EPHEMERAL

    @property
    def _name_template(self) -> str:
        return self._text

    def is_ephemeral(self) -> bool:
        return True


class _NeverSource(TorchSource):
    """Stands for source classes of torch._dynamo, of which there is no instance while it is not loaded."""


def _part(template: str) -> Callable[..., TorchSource]:
    def make(base: TorchSource, member: str = "") -> TorchSource:
        return NamedSource(template.format(base=base.name, member=member))

    return make


class TensorProperty(enum.Enum):
    """Torch's names of the parts of a layout."""

    SIZE = "size"
    STRIDE = "stride"
    STORAGE_OFFSET = "storage_offset"


def _property(base: TorchSource, prop: TensorProperty, idx: int | None = None) -> TorchSource:
    place = "" if idx is None else str(idx)
    return NamedSource(f"{base.name}.{prop.value}({place})")


def _config() -> dict[str, object]:
    # The defaults of torch/_dynamo/config.py.
    environ = os.environ
    return {
        "fake_tensor_cache_enabled": environ.get("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "1") == "1",
        "fake_tensor_cache_crosscheck_enabled": environ.get("TORCH_FAKE_TENSOR_DISPATCH_CACHE_CROSSCHECK", "0") == "1",
        "_custom_ops_profile": None,
    }


_SOURCES: Final[dict[str, object]] = {
    "RandomValueSource": _NeverSource,
    "FloatTensorSource": _NeverSource,
    "ConstantSource": NamedSource,
    "EphemeralSource": NamedSource,
    "AttrSource": _part("{base}.{member}"),
    "CallMethodItemSource": _part("{base}.item()"),
    "TensorProperty": TensorProperty,
    "TensorPropertySource": _property,
}

_STANDS: Final = {
    "torch._dynamo.config": _Stand("torch._dynamo.config", _config()),
    "torch._dynamo.source": _Stand("torch._dynamo.source", _SOURCES),
    # Nothing is switched on that is not loaded.
    "torch._dynamo.compiled_autograd": _Stand("torch._dynamo.compiled_autograd", {"_disable": nullcontext}),
    "torch.fx.experimental.validator": _Stand(
        "torch.fx.experimental.validator",
        {"translation_validation_enabled": lambda: torch.fx.experimental._config.translation_validation},
    ),
}
_DYNAMO: Final = _Stand(
    _REPLACED, {name.rpartition(".")[2]: stand for name, stand in _STANDS.items() if name.startswith(_REPLACED)}
)


class _TorchView(ModuleType):
    """`torch` for rebuilt functions: the real module, except `torch._dynamo` while that is not loaded."""

    def __getattr__(self, name: str) -> Any:
        if name == "_dynamo" and _REPLACED not in sys.modules:
            return _DYNAMO
        return getattr(torch, name)


_VIEW: Final = _TorchView("torch")


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: tuple[str, ...] = (),
    level: int = 0,
) -> ModuleType:
    if level == 0 and name.partition(".")[0] == "torch":
        stand = _STANDS.get(name) if _REPLACED not in sys.modules else None
        if stand is None or not fromlist:
            if stand is None:
                importlib.import_module(name)
            if not fromlist:
                return _VIEW
        else:
            return stand
    return builtins.__import__(name, globals, locals, fromlist, level)


def rebuilt_globals(names: Mapping[str, Any], **others: object) -> dict[str, Any]:
    """Return the globals of a module of torch for rebuilt functions, with `others` replacing names."""
    return {**names, "torch": _VIEW, "__builtins__": {**vars(builtins), "__import__": _import}, **others}


@cache
def report_slow(what: str) -> None:
    """Log, once, that torch's internals differ from those that rebuilt functions rely on."""
    report_missing(what, "torch._dynamo is imported when the first function is compiled")


def discard_report(*what: object, **more: object) -> None:
    """Stands for torch's structured log, which walks the stack for each entry, written or not."""


def rebuilt(function: F, names: dict[str, Any] | None = None) -> F:
    """`function` with the same code, defaults and closure, importing as Note [Rebuilt functions] says.

    `names`: globals made by `rebuilt_globals`, where several functions of a module share them.
    """
    assert isinstance(function, FunctionType)
    if names is None:
        names = rebuilt_globals(function.__globals__)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy  # type: ignore[return-value]
