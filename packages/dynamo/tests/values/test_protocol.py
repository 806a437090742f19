"""Optional operations of values are declared in the protocol, and called directly: nobody looks for them by name."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import framesmith_dynamo
from framesmith_dynamo.interpreter import handlers
from framesmith_dynamo.values.base import Value
from framesmith_dynamo.values.wrap import load_tables

ROOT = Path(framesmith_dynamo.__file__).parent
handlers.load()
load_tables()


def families(cls: type[Value] = Value) -> Iterator[type[Value]]:
    """All classes of values."""
    yield cls
    for family in cls.__subclasses__():
        yield from families(family)


def offered() -> set[str]:
    """Return the names of the methods of all classes of values."""
    return {name for family in families() for name, raw in vars(family).items() if isinstance(raw, FunctionType)}


def asked_by_name(tree: ast.Module) -> Iterator[str]:
    """Return the names looked up with `getattr` and `hasattr`, where they are literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def test_no_capability_of_a_value_is_looked_for_by_name() -> None:
    names = offered()
    assert {"real_slice", "call_c_method", "has_known_order"} <= names
    found = {
        f"{path.name}: {name}"
        for path in ROOT.rglob("*.py")
        for name in asked_by_name(ast.parse(path.read_text()))
        if name in names
    }
    assert found == set()


def test_asking_by_name_is_found() -> None:
    assert list(asked_by_name(ast.parse("getattr(value, 'real_slice', None)"))) == ["real_slice"]


def test_values_have_the_attributes_that_their_classes_name() -> None:
    assert [family for family in families() if "__dict__" in vars(family)] == []
