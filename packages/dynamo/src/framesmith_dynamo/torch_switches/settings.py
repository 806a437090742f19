"""Settings of torch's compiler (`torch._dynamo.config` and others): those with an effect here, and warnings for others.

Names without effect are not listed: torch is asked which settings the program has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import torch

from framesmith_dynamo.torch_switches import torch_names
from framesmith_guards import warn_user

#: Settings of torch._dynamo.config that have an effect here, and which.
HONOURED: Final[Mapping[str, str]] = {
    "recompile_limit": "entries per code object, where compile() was given no recompile_limit",
    "cache_size_limit": "recompile_limit by its former name",
    "accumulated_recompile_limit": "an upper bound of recompile_limit",
    "accumulated_cache_size_limit": "accumulated_recompile_limit by its former name",
    "fail_on_recompile_limit_hit": "a call beyond the limit raises RecompileLimit",
    "fail_on_cache_limit_hit": "fail_on_recompile_limit_hit by its former name",
    "error_on_recompile": "a recompilation raises",
    "dynamic_shapes": "False: no size or number is a symbol",
    "assume_static_by_default": "False: as dynamic=True, where compile() was given no dynamic",
    "automatic_dynamic_shapes": "False: sizes that have changed are compiled for one by one; marks count",
    "specialize_int": "True: integers that have changed are compiled for one by one",
    "specialize_float": "True: floating-point numbers that have changed are compiled for one by one",
    "capture_scalar_outputs": "unbacked numbers are always captured",
    "capture_dynamic_output_shape_ops": "unbacked sizes are always captured",
    "suppress_errors": "failures of the compiler run the code eagerly with a warning, unless compile() has strict=True",
    "disable": "compile() gives back its target",
}
#: The setting of AOTAutograd that has an effect here: where `compile()` was given no memory budget.
BUDGET: Final = "activation_memory_budget"
#: Settings with an effect here, by module.
HONOURED_IN: Final[Mapping[str, Collection[str]]] = {
    torch_names.CONFIG: HONOURED,
    torch_names.AUTOGRAD_CONFIG: (BUDGET,),
}
#: Modules with settings of torch's compiler, and the alternative to each.
MODULES: Final[Mapping[str, str]] = {
    torch_names.CONFIG: "see docs/torch-switches.md for those that have one",
    "torch.compiler.config": "see docs/torch-switches.md for those that have one",
    torch_names.AUTOGRAD_CONFIG: "it is of torch's AOTAutograd",
    "torch._inductor.config": "it is of torch's Inductor; see the options of framesmith's backends",
}
#: Settings that torch derives from a switch that has an effect here, and the getter of that switch.
FOLLOWING: Final[Mapping[str, Callable[[], object]]] = {
    "torch._inductor.config.deterministic": torch.are_deterministic_algorithms_enabled,
}
#: Environment variables that switch compiling off.
OFF: Final = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")

_warned: set[str] = set()


class SwitchWarning(UserWarning):
    """A switch of torch's compiler was set that has no effect here."""


def warn_once(message: str) -> None:
    """Warn of a switch without effect, once per message."""
    if message not in _warned:
        _warned.add(message)
        warn_user(SwitchWarning(message))


def setting(name: str, default: Any) -> Any:
    """Return the value of a name in torch._dynamo.config; the default if the program has not loaded it."""
    return getattr(torch_names.module(torch_names.CONFIG), name, default)


def is_off() -> bool:
    """Whether the program or its environment has switched compiling off."""
    if torch_names.module(torch_names.CONFIG) is not None:
        return bool(setting("disable", False)) or os.environ.get(OFF[1], "") == "1"
    return any(os.environ.get(name, "") == "1" for name in OFF)


def recompile_limit(asked: int | None) -> int:
    """Return the entries allowed per code object: the option, else torch's configuration."""
    limit = asked if asked is not None else int(setting("recompile_limit", 8))
    return max(1, min(limit, int(setting("accumulated_recompile_limit", 256))))


def memory_budget(asked: float | None) -> float:
    """Return the share of the bytes for the backward pass that may be saved: the option, else torch's configuration."""
    return asked if asked is not None else float(getattr(torch_names.module(torch_names.AUTOGRAD_CONFIG), BUDGET, 1.0))


def changed_in(name: str) -> Iterator[str]:
    """Return the names of the settings that the program has changed."""
    module = torch_names.module(name)
    entries = getattr(module, "_config", None)
    is_default = getattr(module, "_is_default", None)
    if not isinstance(entries, Mapping) or is_default is None:
        return
    for key, entry in entries.items():
        if getattr(entry, "alias", None) is not None or is_default(key):
            continue
        value = getattr(module, key, None)
        followed = FOLLOWING.get(f"{name}.{key}")
        if value != vars(entry).get("default") and (followed is None or value != followed()):
            yield key  # patch() restores the previous value, which is no change


def warn_of_ignored_settings() -> None:
    """Warn once of each setting that the program has changed and that has no effect here."""
    if not torch_names.is_loaded():
        return
    for name, instead in MODULES.items():
        for key in changed_in(name):
            if key not in HONOURED_IN.get(name, ()):
                warn_once(f"{name}.{key} was set, which has no effect on framesmith.compile: {instead}")
