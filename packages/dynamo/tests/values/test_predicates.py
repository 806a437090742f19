"""A predicate never guards: calling one (`is_...`, `has_...`) adds no assumption.

Assumptions are made by functions of other names (`guard_...`, `as_constant`).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import framesmith_dynamo

ROOT = Path(framesmith_dynamo.__file__).parent
QUESTION = re.compile(r"_*(is|has|have|may|can|was|were|needs|keeps|owns|takes)_[a-z_]+$")
#: Attributes of the trace that read nothing new of the program.
HARMLESS = {"journal", "facts", "globals", "root_globals", "code", "locals", "pc", "peek", "stack"}
#: Instruction handlers and handlers of calls are named after their operation.
HANDLERS = {"interprets", "handles", "c_method"}
Functions = dict[str, ast.FunctionDef]


def functions_of(tree: ast.Module) -> Functions:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def is_handler(function: ast.FunctionDef) -> bool:
    calls = [node.func for node in function.decorator_list if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in HANDLERS for call in calls)


def tracers_of(function: ast.FunctionDef) -> set[str]:
    """Return the parameters through which a function could guard, and a value's own tracer."""
    given = [(arg.arg, arg.annotation) for arg in function.args.args if arg.annotation is not None]
    return {name for name, annotation in given if ast.unparse(annotation) in ("Tracer", "Frame")}


def uses(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Return a function's uses of a tracer: (attribute read, "") or ("", function it is passed to)."""
    tracers = tracers_of(function)
    passed: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in tracers:
            passed.add(id(node.value))
            yield node.attr, ""
        elif isinstance(node, ast.Attribute) and node.attr in ("tr", "tracer"):
            yield f".{node.attr}", ""
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            given = [arg for arg in node.args if isinstance(arg, ast.Name) and arg.id in tracers]
            passed.update(id(arg) for arg in given)
            if given:
                yield "", name
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in tracers and id(node) not in passed:
            yield node.id, ""


def problems(function: ast.FunctionDef, others: Functions, seen: frozenset[str] = frozenset()) -> list[str]:
    """Return the forbidden uses in a predicate, or in a function of its file that it passes its tracer to."""
    found = []
    for attribute, callee in uses(function):
        if attribute and attribute not in HARMLESS:
            found.append(f"{function.name} uses {attribute} of a tracer")
        elif callee and callee not in others:
            found.append(f"{function.name} passes its tracer to {callee}")
        elif callee and callee not in seen:
            found += problems(others[callee], others, seen | {callee})
    return found


def test_no_predicate_guards() -> None:
    asked, wrong = 0, []
    for path in ROOT.rglob("*.py"):
        functions = functions_of(ast.parse(path.read_text()))
        for name, function in functions.items():
            if QUESTION.match(name) and not is_handler(function):
                asked += 1
                wrong += [f"{path.name}: {problem}" for problem in problems(function, functions)]
    assert asked > 50
    assert wrong == []


def test_one_that_guards_is_found() -> None:
    text = "def is_there(tr: Tracer, x): return look(tr, x)\ndef look(tr: Tracer, x): tr.guard(x, 'HASATTR')"
    functions = functions_of(ast.parse(text))
    assert problems(functions["is_there"], functions) == ["look uses guard of a tracer"]
