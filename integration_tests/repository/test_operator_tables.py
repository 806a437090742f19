"""No operator's name stands in two tables: what is known of an operator by its name stands in one place.

A table is a module's (or class's) collection of operators' names, in whatever form: sets, sequences, keys of data, text
of names, operators themselves. What maps a name to a function is no table of facts but a stage's rules, and each of
those refuses a second rule for an operator itself.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

#: The folders with facts of operators. The rest of dynamo, and guards, use `copy` in Python's sense.
FOLDERS = (
    "aten/src",
    "aot/src",
    "autograd_compiler/src",
    "backends/src",
    "dynamo/src/framesmith_dynamo/graph",
    "dynamo/src/framesmith_dynamo/polyfills",
    "dynamo/src/framesmith_dynamo/tensor_calls",
    "dynamo/src/framesmith_dynamo/values/tensors",
    "framesmith/src",
)

#: Tables whose words are no operators, or that say of operators what no other table could -> why.
OWN_FACTS = {
    "framesmith_aten/fakes/light_nodes.py: _BINARY": "methods of torch's symbolic numbers",
    "framesmith_aten/fakes/modes.py: _WRONG_RULES": "which of torch's rules for fakes are wrong",
    "framesmith_aten/fakes/modes.py: _VIEWS": "the operator that a primitive of torch's is, for its cache of results",
    "framesmith_aten/fakes/modes.py: _CALLING": "which of torch's rules call others while no mode is active",
    "framesmith_aten/fakes/rules/elementwise.py: _ASKING": "what the rule beside it serves",
    "framesmith_aten/fakes/rules/norms.py: _NORMS": "which results of norms have other dtypes than by torch's rules",
    "framesmith_aten/fakes/rules/python_kernels.py: _SERVED": "the dtypes that torch's rules serve",
    "framesmith_aten/fakes/rules/views.py: _VIEWS": "what the rule beside it serves",
    "framesmith_aten/operators.py: _BY_NUMBERS": "what foreach operators of tensors and numbers apply to each",
    "framesmith_backends/native_ops/scans/operator.py: ATENS": "operators by the kind of scan",
    "framesmith_backends/native_ops/sorts/long_lines.py: PHASES": "phases of a sort",
    "framesmith_backends/native_ops/sorts/operator.py: SORT": "the name of a native operator",
    "framesmith_backends/options.py: RENAMED_VALUES": "options of backends",
}

#: Prefixes of a word that names an operator.
PREFIXES = ("torch.Tensor.", "torch.ops.aten.", "torch.", "aten::", "aten.")

OPERATORS = frozenset(
    name.removeprefix("aten::").partition(".")[0].removesuffix("_")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("aten::")
)


def operator_of(word: str) -> str | None:
    """The operator that a word names, `add_`, `torch.add`, `aten.add.Tensor` and `aten::add` all being `add`."""
    prefix = next((prefix for prefix in PREFIXES if word.startswith(prefix)), "")
    plain = word.removeprefix(prefix).partition(".")[0].removesuffix("_")
    is_module = prefix == "torch." and isinstance(getattr(torch, plain, None), ModuleType)
    return plain if plain in OPERATORS and not is_module else None


def dotted(node: ast.expr) -> str:
    """`torch.ops.aten.add.Tensor` as text; an empty text for anything else."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def is_rule(node: ast.expr) -> bool:
    """Whether the expression gives code: a lambda, a function's name, a call that makes one."""
    return isinstance(node, (ast.Lambda, ast.Call)) or (
        isinstance(node, (ast.Name, ast.Attribute)) and not (dotted(node).isupper() or "aten." in dotted(node))
    )


def is_list_of_names(words: list[str]) -> bool:
    """Whether words are names, not prose: nothing but names, some of which no sentence has."""
    return all(re.fullmatch(r"\w+([.:]+\w+)*", word) for word in words) and any(set("_.") & set(w) for w in words)


def names_in(node: ast.expr) -> Iterator[str]:
    """The operators that a collection names, those with a rule beside them left out."""
    if isinstance(node, ast.Constant):
        words = node.value.split() if isinstance(node.value, str) else []
        found = [operator_of(word) for word in words]
        if None not in found or is_list_of_names(words):
            yield from (name for name in found if name is not None)
    elif isinstance(node, ast.Attribute) and "aten." in dotted(node):
        name = operator_of(dotted(node).partition("aten.")[2])
        yield from [name] if name is not None else []
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None or not is_rule(value):
                yield from (*(names_in(key) if key is not None else ()), *names_in(value))
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        if not (isinstance(node, ast.Tuple) and any(is_rule(item) for item in node.elts)):
            for item in node.elts:
                yield from names_in(item)
    elif isinstance(node, ast.Call):
        inner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for item in (*inner, *node.args):
            yield from names_in(item)
    elif isinstance(node, (ast.Starred, ast.BinOp)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from names_in(child)


def is_dunder(statement: ast.Assign | ast.AnnAssign) -> bool:
    """Whether it assigns to a name of Python's own, such as `__slots__`."""
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    return isinstance(target, ast.Name) and target.id.startswith("__")


def tables_of(source: Path) -> Iterator[tuple[str, set[str]]]:
    """The tables of one file: its path in the sources with the table's name, and the operators in it."""
    path = source.as_posix().rpartition("/src/")[2]
    tree = ast.parse(source.read_text())
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for statement in (statement for body in bodies for statement in body):
        if (
            isinstance(statement, (ast.Assign, ast.AnnAssign))
            and statement.value is not None
            and not is_dunder(statement)
        ):
            names = set(names_in(statement.value))
            if len(names) > 1 or (names and not isinstance(statement.value, ast.Constant)):
                target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
                yield f"{path}: {ast.unparse(target)}", names


def found_twice(root: Path, folders: tuple[str, ...]) -> dict[str, list[str]]:
    """Operators in more than one table, with the tables."""
    tables: dict[str, list[str]] = defaultdict(list)
    for place in folders:
        for source in sorted((root / "packages" / place).rglob("*.py")):
            for where, names in tables_of(source):
                for name in names:
                    tables[name].append(where)
    return {name: found for name, found in tables.items() if len(found) > 1}


def repeated(found: dict[str, list[str]], known: Collection[str]) -> dict[str, list[str]]:
    """Those in more than one table besides the `known` ones."""
    rest = {name: [table for table in tables if table not in known] for name, tables in found.items()}
    return {name: tables for name, tables in rest.items() if len(tables) > 1}


def test_no_operator_is_in_two_tables() -> None:
    assert repeated(found_twice(ROOT, FOLDERS), OWN_FACTS) == {}


def test_each_table_with_facts_of_its_own_would_be_found() -> None:
    found = found_twice(ROOT, FOLDERS)
    assert [table for table in OWN_FACTS if not repeated(found, OWN_FACTS.keys() - {table})] == []


def test_the_folders_are_there() -> None:
    assert [place for place in FOLDERS if not list((ROOT / "packages" / place).rglob("*.py"))] == []


def test_the_scan_sees_the_table_of_operators() -> None:
    tables = dict(tables_of(ROOT / "packages/aten/src/framesmith_aten/table.py"))
    assert max(len(names) for names in tables.values()) > 100
    methods = dict(tables_of(ROOT / "packages/aten/src/framesmith_aten/tensor_methods.py"))
    assert any({"resize", "set", "to_sparse"} <= names for names in methods.values())


def found_beside_a_table(text: str, root: Path) -> dict[str, list[str]]:
    """Return the names found twice in one file with a table of operators and another with this text."""
    source = root / "packages" / "aten" / "src"
    source.mkdir(parents=True)
    (source / "one.py").write_text('TABLE = _rows("gather index_add bernoulli", costly=True)\n')
    (source / "other.py").write_text(text + "\n")
    return found_twice(root, ("aten/src",))


PLANTS = {
    "set": 'KNOWN = frozenset({"sin", "gather"})',
    "typed set": 'KNOWN: frozenset[str] = frozenset(["sin", "gather"])',
    "tuple": 'KNOWN = ("gather", "sin")',
    "text": 'KNOWN = "sin gather bernoulli_".split()',
    "in place": 'KNOWN = {"index_add_"}',
    "data by name": 'KNOWN = {"gather": 1, "other": 2}',
    "data by operator": 'KNOWN = {"aten.gather.default": ("method", 1)}',
    "operators": "KNOWN = frozenset({torch.ops.aten.gather.default, aten.cos.default})",
    "function of text": 'KNOWN = {**_at(slice(1), "gather sin"), **_at(slice(2), "cos")}',
    "text as a value": 'KNOWN = {KIND: "torch.gather torch.sin"}',
    "sets as values": 'KNOWN = {"first": {"gather"}, "second": ("other", "cos")}',
    "methods among others": 'KNOWN = {"data": "tolist gather __array__"}',
    "in a class": 'class Rules:\n    KNOWN = {"gather", "sin"}',
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_table_is_found(plant: str, tmp_path: Path) -> None:
    assert found_beside_a_table(PLANTS[plant], tmp_path)


HARMLESS = {
    "rules": "RULES = {aten.gather.default: lower_gather, 'index_add': lambda x: x}",
    "rows of rules": "RULES = (('gather', lowered), ('bernoulli', lambda x: x))",
    "prose": 'REASON = "an index may gather dust"',
    "other words": 'NAMES = ("cpu", "cuda")',
}


@pytest.mark.parametrize("text", HARMLESS)
def test_rules_and_prose_are_no_tables(text: str, tmp_path: Path) -> None:
    assert found_beside_a_table(HARMLESS[text], tmp_path) == {}
