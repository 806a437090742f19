"""Environments of the checks in `noxfile.py`: wheels are built once a run, what is large is installed once and lent.

A layer is a virtual environment under `.nox/layers` that others see through a `.pth` file: torch, the test tools, the
peers. It is installed once for a Python, a release of torch and a list of requirements, and serves every session of
this run and of later ones; `rm -r .nox` forgets it. A package's environment has the wheels of the package and of what
it declares, and sees torch only where it declares torch: what it does not declare is not there.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nox

from tools import check_layers

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ROOT / ".nox" / "layers"
#: The Python that runs nox.
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
#: Lower layers first, so that a failure is met where it arises.
PACKAGES = [*check_layers.LAYERS]
#: Python compiles what is imported; compiling all of torch takes longer than most packages' tests.
INSTALL = ["install", "-q", "--no-compile", "--disable-pip-version-check"]
#: Requirements of the checks, by purpose.
GROUPS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]


class Options(NamedTuple):
    """Arguments behind `--`."""

    #: a release of torch, in place of the one in constraints.txt
    torch: str | None
    #: torch on Pythons other than the one that runs nox
    with_torch: bool
    #: for the command that the session runs
    rest: list[str]


def options_of(session: nox.Session) -> Options:
    """Return the session's arguments behind `--`: options of the noxfile, and others."""
    parser = argparse.ArgumentParser(prog="nox -s SESSION --", allow_abbrev=False, add_help=False)
    parser.add_argument("--torch", metavar="VERSION")
    parser.add_argument("--with-torch", action="store_true")
    known, rest = parser.parse_known_args(session.posargs)
    return Options(known.torch, known.with_torch, rest)


def constraints(session: nox.Session) -> Path:
    """Return the constraints file that holds torch at the session's release: one for all Pythons, or one for each."""
    release = options_of(session).torch
    if release is None:
        return ROOT / "constraints.txt"
    file = ROOT / ".nox" / f"constraints-torch-{release}.txt"
    file.write_text(f"torch=={release}\n")
    return file


def project(folder: str) -> dict[str, Any]:
    """Return the pyproject table of one folder under packages/."""
    return tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text())


def own_dependencies(folder: str) -> list[str]:
    """Return the folders of this repository that a package needs, itself last."""
    names = {project(other)["project"]["name"]: other for other in PACKAGES}
    needed = []
    for requirement in project(folder)["project"]["dependencies"]:
        name = requirement.split(">")[0].split("[")[0].strip()
        if name in names:
            needed += [dep for dep in own_dependencies(names[name]) if dep not in needed]
    return [*needed, folder]


def needs_torch(folder: str) -> bool:
    """Return whether a package, or one of this repository that it needs, declares torch."""
    declared = [one for name in own_dependencies(folder) for one in project(name)["project"]["dependencies"]]
    return any(one.partition(">")[0].strip() == "torch" for one in declared)


def test_requirements(folder: str) -> list[str]:
    """Return the requirements of a package's tests beside the package and the common tools."""
    return list(project(folder).get("dependency-groups", {}).get("test", []))


def python_of(session: nox.Session) -> str:
    """Return the version of the session's Python."""
    return str(session.python or HERE)


@functools.cache
def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    (folder,) = (environment / "lib").glob("python3.*/site-packages")
    return folder


def interpreter(session: nox.Session) -> str:
    """Return the session's Python: its environment's, where it has one."""
    return "python" if session.python else sys.executable


def pip(session: nox.Session, environment: Path, *arguments: str) -> None:
    """Run pip for an environment: pip has one of its own, and serves all.

    The Pythons other than the one that runs nox may be too new for the pip that it brings, and have none themselves.
    """
    other = python_of(session) != HERE
    home = LAYERS / ("newer-pip" if other else "pip")
    complete = home / "complete"
    if not complete.exists():
        session.run(sys.executable, "-m", "venv", "--clear", str(home), external=True, silent=True)
        if other:
            session.run(str(home / "bin" / "python"), "-m", "pip", *INSTALL, *GROUPS["pip"], external=True)
        complete.touch()
    command = [str(home / "bin" / "python"), "-m", "pip", "--python", str(environment / "bin" / "python")]
    session.run(*command, *arguments, external=True)


def layer(session: nox.Session, *groups: str, below: Sequence[Path] = ()) -> Path:
    """Return the environment with the requirements of dependency groups, installed the first time.

    It sees the layers `below`. The group "torch" is torch at the session's release.
    """
    pinned = constraints(session).read_text().splitlines()
    requirements = [one for group in groups for one in (pinned if group == "torch" else GROUPS[group])]
    key = hashlib.sha256("\n".join([*requirements, *pinned]).encode()).hexdigest()[:8]
    home = LAYERS / f"{'-'.join(groups)}-python{python_of(session)}-{key}"
    complete = home / "complete"
    if not complete.exists():
        command = [interpreter(session), "-m", "venv", "--clear", "--without-pip", str(home)]
        session.run(*command, external=True, silent=True)
        see(home, *below)
        pip(session, home, *INSTALL, "-c", str(constraints(session)), *requirements)
        complete.touch()
    return home


def torch_layer(session: nox.Session) -> Path:
    """Return the environment with torch at the session's release."""
    return layer(session, "torch")


def see(environment: Path, *layers: Path) -> None:
    """Make an environment see the packages of these layers, and of no others, behind its own."""
    (site_packages(environment) / "lent_layers.pth").write_text("".join(f"{site_packages(one)}\n" for one in layers))


def environment_of(session: nox.Session) -> Path:
    """Return the folder of the session's own environment."""
    return Path(session.virtualenv.location).resolve()


def compile_packages(session: nox.Session) -> None:
    """Compile all that is installed, and the layers that are lent, to bytecode, as pip does for a user.

    Otherwise each process would compile modules on its first import, and benchmarks would time that.
    """
    packages = site_packages(environment_of(session))
    folders = [str(packages), *(packages / "lent_layers.pth").read_text().split()]
    session.run("python", "-m", "compileall", "-q", "-j", "0", *folders, silent=True, success_codes=[0, 1])


@functools.cache
def wheels_folder(python: str) -> Path:
    """Return the folder for the wheels that this run of nox builds for a Python: empty the first time."""
    folder = ROOT / ".nox" / f"wheels-python{python}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def build_wheels(session: nox.Session, folders: Sequence[str]) -> Path:
    """Return the folder with these packages' wheels, each built with the session's Python by the first to need it."""
    wheels = wheels_folder(python_of(session))
    missing = [folder for folder in folders if not any(wheels.glob(wheel_names(folder)))]
    if missing:
        builder = layer(session, "build")
        command = [str(builder / "bin" / "python"), "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
        for folder in missing:
            with session.chdir(ROOT / "packages" / folder):
                session.run(*command, external=True, silent=True)
    return wheels


def wheel_names(folder: str) -> str:
    """Return the pattern of the names of a package's wheels."""
    return f"{project(folder)['project']['name'].replace('-', '_')}-[0-9]*.whl"


def wheel_of(wheels: Path, folder: str, extras: str = "") -> str:
    """Return the package's own wheel as a requirement: the registry may have its name, of a higher version."""
    (file,) = wheels.glob(wheel_names(folder))
    return f"{project(folder)['project']['name']}{extras} @ {file.as_uri()}"


def install_wheel(session: nox.Session, folder: str, *more: str, layers: Sequence[Path] = ()) -> None:
    """Install one package's wheel, with only what it declares, and `more`; it sees the test tools and `layers`."""
    needed = own_dependencies(folder)
    wheels = build_wheels(session, needed)
    environment = environment_of(session)
    torch = [torch_layer(session)] if needs_torch(folder) else []
    see(environment, *torch, layer(session, "test"), *layers)
    ours = [wheel_of(wheels, own) for own in needed]
    pip(session, environment, *INSTALL, "-c", str(constraints(session)), *ours, *more)


def peers(session: nox.Session) -> Path:
    """Return the environment of what integration tests compare with: it sees torch."""
    return layer(session, "peers", "vision", "operators", below=[torch_layer(session)])


def checkers(session: nox.Session) -> Path:
    """Return the environment of the checks that run no test: it sees torch, for types."""
    return layer(session, "layers", "lint", "types", below=[torch_layer(session)])


def sources() -> str:
    """Return the path on which the packages' sources are."""
    return os.pathsep.join(str(ROOT / "packages" / folder / "src") for folder in PACKAGES)


def install_sources(session: nox.Session) -> None:
    """Install every package from its sources, to be edited, unless that is done and no C file or pyproject changed."""
    environment = environment_of(session)
    lent = [torch_layer(session), layer(session, "test"), layer(session, "build"), layer(session, "operators")]
    see(environment, *lent)
    watched = [ROOT / "pyproject.toml", *(ROOT / "packages").glob("*/pyproject.toml")]
    watched += [*(ROOT / "packages").glob("*/native_build.py"), *(ROOT / "packages").glob("*/src/*/_native/**/*.[ch]")]
    state = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(watched))).hexdigest()
    installed = environment / "installed"
    if not installed.exists() or installed.read_text() != state:
        editable = [argument for folder in PACKAGES for argument in ("-e", f"{ROOT / 'packages' / folder}")]
        quiet = ["--no-build-isolation", "-c", str(constraints(session))]
        pip(session, environment, *INSTALL, *quiet, *editable)
        installed.write_text(state)


def run_tests(session: nox.Session, folder: str, *options: str, env: dict[str, str] | None = None) -> None:
    """Run one package's tests against what is installed, away from its sources."""
    tests = ROOT / "packages" / folder / "tests"
    config = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tests}", f"--confcutdir={ROOT}"]
    command = ["python", "-m", "pytest", *config, "-p", "no:cacheprovider", *options, str(tests)]
    with session.chdir(session.create_tmp()):
        session.run(*command, *options_of(session).rest, env=env)
