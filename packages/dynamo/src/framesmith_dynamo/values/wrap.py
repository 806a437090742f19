"""`wrap_object`: the value of a Python object found at a source. Importing this module loads every table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from framesmith_dynamo.breaks import GraphBreak, register_break
from framesmith_dynamo.values.attribute_dicts.instance_dict import wrap_attribute_dict
from framesmith_dynamo.values.base import Tracer, Value
from framesmith_dynamo.values.wrap_registry import find_wrapper

if TYPE_CHECKING:
    from framesmith_guards import Source

#: Modules that register wrappers and handlers; each is loaded once. Order matters for one pair: `tensors.construction`
#: comes before `torch_api.functions`, which takes those of torch's functions that have no handler yet.
TABLES = (
    "framesmith_dynamo.values.constants.constant",
    "framesmith_dynamo.values.constants.symbolic",
    "framesmith_dynamo.values.constants.strings",
    "framesmith_dynamo.values.containers",
    "framesmith_dynamo.values.iteration.iterators",
    "framesmith_dynamo.values.tensors.tensor",
    "framesmith_dynamo.values.functions.functions",
    "framesmith_dynamo.values.constants.folded",
    "framesmith_dynamo.values.constants.records",
    "framesmith_dynamo.values.functions.library_functions",
    "framesmith_dynamo.values.objects.classes",
    "framesmith_dynamo.values.modules.modules",
    "framesmith_dynamo.values.objects.object_methods",
    "framesmith_dynamo.values.objects.supers",
    "framesmith_dynamo.values.objects.container_objects",
    "framesmith_dynamo.values.objects.simple_namespaces",
    "framesmith_dynamo.values.objects.user_objects",
    "framesmith_dynamo.values.objects.exception_groups",
    "framesmith_dynamo.values.functions.type_parameters",
    "framesmith_dynamo.values.functions.partials",
    "framesmith_dynamo.values.objects.cached_functions",
    "framesmith_dynamo.values.functions.compiled",
    "framesmith_dynamo.values.modules.module_sequences",
    "framesmith_dynamo.values.modules.hook_handles",
    "framesmith_dynamo.values.objects.copying",
    "framesmith_dynamo.values.functions.signatures",
    "framesmith_dynamo.values.modules.python_modules",
    "framesmith_dynamo.values.tensors.construction",
    "framesmith_dynamo.values.tensors.hooks",
    "framesmith_dynamo.values.tensors.leaves",
    "framesmith_dynamo.values.torch_api.checks",
    "framesmith_dynamo.values.torch_api.number_tensors",
    "framesmith_dynamo.values.torch_api.schedulers",
    "framesmith_dynamo.values.torch_api.functions",
    "framesmith_dynamo.values.torch_api.operators",
    "framesmith_dynamo.values.higher_order.flex_attention",
    "framesmith_dynamo.values.higher_order.subgraphs",
    "framesmith_dynamo.values.higher_order.control_flow",
    "framesmith_dynamo.values.higher_order.scans",
    "framesmith_dynamo.values.higher_order.vmap",
    "framesmith_dynamo.values.higher_order.derivatives.gradients",
    "framesmith_dynamo.values.higher_order.derivatives.engine",
    "framesmith_dynamo.values.higher_order.derivatives.jacobians",
    "framesmith_dynamo.values.higher_order.derivatives.linear",
    "framesmith_dynamo.values.torch_api.contexts",
    "framesmith_dynamo.values.higher_order.derivatives.forward_mode",
    "framesmith_dynamo.values.higher_order.checkpoint",
    "framesmith_dynamo.values.higher_order.autograd_functions",
    "framesmith_dynamo.builtins",
    "framesmith_dynamo.values.opaque",
)

UNKNOWN_OBJECT = register_break(
    "unknown-object",
    what="an object of a type the tracer has no value for",
    why="no row of the wrap table accepts its type",
    hint="keep the object out of the compiled function, or use it through a plain Python class",
)


def load_tables() -> None:
    """Import every module that registers wrappers; cheap after the first time."""
    for name in TABLES:
        importlib.import_module(name)


def wrap_object(tr: Tracer, obj: object, source: Source) -> Value:
    """Return the value for `obj`, which compiled code will find at `source`; guards are added through `tr`.

    Raises GraphBreak (unknown-object) when no wrapper accepts it. `Tracer.wrap` caches the result and is the only
    caller.
    """
    if type(obj) is dict and (owned := wrap_attribute_dict(tr, obj, source)) is not None:
        return owned
    wrapper = find_wrapper(obj)
    if wrapper is None:
        raise GraphBreak(UNKNOWN_OBJECT, f"{type(obj).__module__}.{type(obj).__qualname__} at {source.name}")
    return wrapper(tr, obj, source)
