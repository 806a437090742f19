"""Paths to parameters, buffers and submodules past `Module.__getattr__`: two dictionary reads with shared prefixes."""

from __future__ import annotations

from framesmith_guards.sources.base import Source
from framesmith_guards.sources.steps import InstanceDictSource, ItemSource


def _registered(module: Source, registry: str, name: str) -> Source:
    return ItemSource(ItemSource(InstanceDictSource(module), registry), name)


def parameter_source(module: Source, name: str) -> Source:
    """`module.__dict__['_parameters'][name]`."""
    return _registered(module, "_parameters", name)


def buffer_source(module: Source, name: str) -> Source:
    """`module.__dict__['_buffers'][name]`."""
    return _registered(module, "_buffers", name)


def submodule_source(module: Source, name: str) -> Source:
    """`module.__dict__['_modules'][name]`."""
    return _registered(module, "_modules", name)
