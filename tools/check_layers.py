"""Check the layering of the monorepo: who may import whom, and that nothing imports what Framesmith replaces.

The allowed graph *is* each distribution's declared dependencies; its tests may import what those bring, and what the
`test` groups of its own pyproject.toml and of the root's name. Every import is counted, function-local ones and
`importlib.import_module("literal")` too. Run as `python tools/check_layers.py [ROOT]`; exits 1 on a problem.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

#: The layer of each folder under packages/ (docs/architecture.md). A distribution may only depend on lower layers.
LAYERS: dict[str, int] = {
    "bytecode": 0,
    "frames": 0,
    "guards": 0,
    "sideeffects": 1,
    "aten": 1,
    "dynamo": 2,
    "aot": 2,
    "autograd_compiler": 2,
    "backends": 2,
    "framesmith": 3,
}

#: Modules that Framesmith replaces; no source file of ours may import them.
FORBIDDEN: tuple[str, ...] = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd",
    "torch._functorch.partitioners",
)


@dataclass(frozen=True)
class Package:
    """One distribution: its folder, import name, and what its pyproject declares."""

    folder: str
    module: str
    root: Path
    declared: frozenset[str]
    for_tests: frozenset[str]
    modules: dict[str, Path] = field(hash=False)


@dataclass(frozen=True)
class Import:
    """One import statement: the dotted name asked for, and where."""

    name: str
    path: Path
    line: int


def import_name(distribution: str) -> str:
    """The import name of a distribution name such as `framesmith-guards`."""
    return re.sub(r"[-_.]+", "_", distribution).lower()


def requirement_name(requirement: str) -> str:
    """The distribution name at the front of a requirement string."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    if match is None:
        raise ValueError(f"cannot read the requirement {requirement!r}")
    return match.group()


def import_names(requirements: list[str]) -> frozenset[str]:
    """Return the import names of requirement strings."""
    return frozenset(import_name(requirement_name(requirement)) for requirement in requirements)


def test_group(root: Path) -> frozenset[str]:
    """Return the import names of the `test` dependency group of the pyproject in this folder."""
    groups = tomllib.loads((root / "pyproject.toml").read_text()).get("dependency-groups", {})
    return import_names(groups.get("test", []))


def load_package(root: Path) -> Package:
    """Read one folder under packages/."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = list(project.get("dependencies", []))
    for extra in project.get("optional-dependencies", {}).values():
        requirements += extra
    declared = import_names(requirements)
    module = import_name(project["name"])
    source = root / "src"
    files = [*sorted(source.rglob("*.pyi")), *sorted(source.rglob("*.py"))]  # a stub alone: an extension module
    modules = {".".join(p.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): p for p in files}
    return Package(root.name, module, root, declared, test_group(root), modules)


def imports_of(path: Path, module: str) -> Iterator[Import]:
    """All imports in a file, wherever they stand."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        names = imported_names(path.read_text(), package)
    except SyntaxError as error:
        error.filename = str(path)
        raise
    for name, line in names:
        yield Import(name, path, line)


@cache
def imported_names(text: str, package: str) -> tuple[tuple[str, int], ...]:
    """The names that the code of a module of this package imports, with their lines; each text is walked once."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call):
            found += [(name, node.lineno) for name in dynamic_import(node)]
    return tuple(found)


def dynamic_import(node: ast.Call) -> list[str]:
    """`importlib.import_module("name")` and `__import__("name")` with a literal name."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    target = node.args[0] if name in ("import_module", "__import__") and node.args else None
    return [target.value] if isinstance(target, ast.Constant) and isinstance(target.value, str) else []


def resolve(name: str, modules: dict[str, Path]) -> str | None:
    """The module of this package that an import of `name` runs, or None when it names none."""
    while name:
        if name in modules:
            return name
        name = name.rpartition(".")[0]
    return None


def check_imports(package: Package, by_module: dict[str, Package]) -> Iterator[str]:
    """Imports that the declared dependencies do not allow."""
    for module, path in package.modules.items():
        for found in imports_of(path, module):
            problem = why_not_allowed(found, package, by_module)
            if problem is not None:
                yield f"{found.path}:{found.line}: {problem}"


def brought_by(names: frozenset[str], by_module: dict[str, Package]) -> frozenset[str]:
    """These names and, for those of our distributions, what they declare in turn."""
    reached = names
    while more := frozenset[str]().union(*(by_module[name].declared for name in reached & by_module.keys())) - reached:
        reached |= more
    return reached


def check_test_imports(package: Package, by_module: dict[str, Package], common: frozenset[str]) -> Iterator[str]:
    """Imports of a package's tests that its wheel, installed with what it declares and with `common`, cannot serve.

    The folder `tools` serves all tests: the repository's `conftest.py` makes it importable.
    """
    folder = package.root / "tests"
    files = sorted(folder.rglob("*.py"))
    neighbours = {part for path in files for part in path.relative_to(folder).with_suffix("").parts}
    allowed = (
        brought_by(package.declared | package.for_tests, by_module) | common | neighbours | {package.module, "tools"}
    )
    for path in files:
        for found in imports_of(path, path.stem):
            top = found.name.split(".")[0]
            if top not in allowed and top not in sys.stdlib_module_names:
                yield f"{path}:{found.line}: tests import {top}, which {package.folder} and its test group do not bring"


def why_not_allowed(found: Import, package: Package, by_module: dict[str, Package]) -> str | None:
    """Why this import breaks a rule, or None when it is fine."""
    for forbidden in FORBIDDEN:
        if found.name == forbidden or found.name.startswith(forbidden + "."):
            return f"imports {found.name}, which Framesmith replaces"
    top = found.name.split(".")[0]
    if top == package.module or top in sys.stdlib_module_names:
        return None
    if top not in package.declared:
        return f"{package.module} imports {top}, which its pyproject.toml does not declare"
    if top in by_module:
        return why_not_public(found, top)
    return None


def why_not_public(found: Import, top: str) -> str | None:
    """Why this name of another of our distributions is off limits."""
    private = [part for part in found.name.split(".")[1:] if part.startswith("_") and not part.startswith("__")]
    return f"imports the private name {found.name} of {top}" if private else None


def check_layers(packages: list[Package]) -> Iterator[str]:
    """Declared dependencies that go sideways or upwards."""
    by_module = {p.module: p for p in packages}
    for package in packages:
        if package.folder not in LAYERS:
            yield f"packages/{package.folder} has no layer in tools/check_layers.py"
            continue
        for name in sorted(package.declared & by_module.keys()):
            other = by_module[name]
            if LAYERS.get(other.folder, 99) >= LAYERS[package.folder]:
                yield (
                    f"{package.root / 'pyproject.toml'}: {package.module} (layer {LAYERS[package.folder]}) depends on "
                    f"{name} (layer {LAYERS.get(other.folder)}); only lower layers are allowed"
                )


def import_graph(package: Package) -> dict[str, set[str]]:
    """Edges between the modules of one distribution; an import of a submodule counts as that submodule alone."""
    edges: dict[str, set[str]] = {module: set() for module in package.modules}
    for module, path in package.modules.items():
        if path.suffix == ".pyi":
            continue  # an extension module imports nothing at run time
        for found in imports_of(path, module):
            target = resolve(found.name, package.modules)
            if target is not None and target != module:
                edges[module].add(target)
    return edges


def check_cycles(package: Package) -> Iterator[str]:
    """An import cycle inside one distribution, lazy imports counted; the first one found is named."""
    try:
        graphlib.TopologicalSorter(import_graph(package)).prepare()
    except graphlib.CycleError as error:
        yield f"packages/{package.folder}: import cycle {' -> '.join(reversed(error.args[1]))}"


def check(root: Path) -> list[str]:
    """Everything that is wrong below `root`, as messages."""
    folders = sorted(p.parent for p in (root / "packages").glob("*/pyproject.toml"))
    packages = [load_package(folder) for folder in folders]
    by_module = {p.module: p for p in packages}
    problems = list(check_layers(packages))
    common = test_group(root)
    for package in packages:
        problems += check_imports(package, by_module)
        problems += check_test_imports(package, by_module, common)
        problems += check_cycles(package)
    return problems


def main() -> int:
    """Print the problems; 1 when there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} problem(s)" if problems else "layers: all imports go downwards, no cycles")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
