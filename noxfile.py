"""Every check of the repository. `nox` runs the default ones; `nox -l` lists all.

Packages are tested as wheels, each in an environment of its own holding only what it declares. `-- --torch VERSION`
runs any session with that release of torch in place of the one in constraints.txt.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["layers", "lint", "types", "tests", "integration"]
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
PYTHONS = ["3.11", "3.12", "3.13"]
#: The Python that runs nox.
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
#: Lower layers first, so that a failure is met where it arises.
PACKAGES = [
    "bytecode",
    "frames",
    "guards",
    "sideeffects",
    "aten",
    "dynamo",
    "aot",
    "autograd_compiler",
    "backends",
    "framesmith",
]
TORCH_FREE = ["bytecode", "frames"]
#: Packages with C code: their binaries serve every torch from the oldest of these to the newest.
NATIVE = ["frames", "guards"]
TORCHES = ["2.11.0", "2.13.0", "2.14.1", "2.15.0"]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
#: Python compiles what is imported; compiling all of torch takes longer than most packages' tests.
INSTALL = ["-q", "--no-compile"]
#: What the checks need, by purpose.
GROUPS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
#: Tests run in two processes: each begins with one half, and who has done takes over what the other has left.
WORKERS = ["-n", "2", "--dist", "worksteal"]
#: Where the registry's torch is built for CUDA.
WITH_CUDA = ["3.12"]
#: Tests of recorded graphs, which look at the memory that torch's allocator keeps.
OF_RECORDINGS = [
    "packages/backends/tests/cuda_graphs/test_capturer.py",
    "integration_tests/kernels/test_captured_training.py",
]
#: The folder that crosses packages, among the parts of the matrix.
INTEGRATION = "integration"
#: What a release of torch is tried with that no other check has seen yet.
SMOKE_TESTS = [
    "repository/test_readmes.py",
    "api/test_compile.py",
    "api/test_torch_compile_entry_point.py",
    "training/test_optimizers.py",
    "errors/test_failures.py",
    "operators/test_custom_operators.py",
]


class Asked(NamedTuple):
    """What stands behind `--`."""

    #: a release of torch, in place of the one in constraints.txt
    torch: str | None
    #: torch on Pythons other than the one that runs nox
    with_torch: bool
    #: for the command that the session runs
    rest: list[str]


def asked(session: nox.Session) -> Asked:
    """What is asked for behind `--`: options for this file, and others."""
    parser = argparse.ArgumentParser(prog="nox -s SESSION --", allow_abbrev=False, add_help=False)
    parser.add_argument("--torch", metavar="VERSION")
    parser.add_argument("--with-torch", action="store_true")
    known, rest = parser.parse_known_args(session.posargs)
    return Asked(known.torch, known.with_torch, rest)


def choose_torch(session: nox.Session, release: str) -> None:
    """Run the rest of the session with a release of torch."""
    session.log(f"torch {release}")
    session.posargs[:] = ["--torch", release, *asked(session).rest]


def constraints(session: nox.Session) -> Path:
    """The constraints file that holds torch at the session's release."""
    release = asked(session).torch
    if release is None:
        return ROOT / "constraints.txt"
    file = ROOT / ".nox" / f"constraints-torch-{release}.txt"
    file.write_text(f"torch=={release}\n")
    return file


def project(folder: str) -> dict[str, Any]:
    """The pyproject table of one folder under packages/."""
    return tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text())


def own_dependencies(folder: str) -> list[str]:
    """The folders of this repository that a package needs, itself last."""
    names = {project(other)["project"]["name"]: other for other in PACKAGES}
    needed = []
    for requirement in project(folder)["project"]["dependencies"]:
        name = requirement.split(">")[0].split("[")[0].strip()
        if name in names:
            needed += [dep for dep in own_dependencies(names[name]) if dep not in needed]
    return [*needed, folder]


@functools.cache
def wheels_folder(python: str) -> Path:
    """Where the wheels that this run of nox builds for a Python go: empty the first time."""
    folder = ROOT / ".nox" / f"wheels-python{python}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def build_wheels(session: nox.Session) -> Path:
    """The folder of every package's wheel, built with the session's interpreter by the first session to need it."""
    wheels = wheels_folder(str(session.python or HERE))
    if not any(wheels.iterdir()):
        session.install(*INSTALL, "hatchling>=1.27")
        command = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
        session.run("python", "-m", *command, *[str(ROOT / "packages" / folder) for folder in PACKAGES])
        backend = ["hatchling", "pathspec", "trove-classifiers", "pluggy"]
        session.run("python", "-m", "pip", "uninstall", "-q", "-y", *backend)
    return wheels


def needs_torch(folder: str) -> bool:
    """Whether a package, or one of this repository that it needs, declares torch."""
    declared = [one for name in own_dependencies(folder) for one in project(name)["project"]["dependencies"]]
    return any(one.partition(">")[0].strip() == "torch" for one in declared)


def lend_torch(session: nox.Session) -> None:
    """Put torch on the environment's path, with what it needs: of each release one copy, in .nox, serves all sessions.

    Unpacking torch takes longer than most packages' tests.
    """
    pinned = constraints(session).read_text().strip()
    folder = ROOT / ".nox" / f"{pinned}-python{session.python or HERE}" / "site-packages"
    if not folder.exists():
        partial = folder.with_name("partial")
        shutil.rmtree(partial, ignore_errors=True)
        session.install(*INSTALL, "--target", str(partial), pinned)
        partial.rename(folder)
    (own_packages(session) / "lent_torch.pth").write_text(f"{folder}\n")


def own_packages(session: nox.Session) -> Path:
    """Where the session's environment keeps what is installed."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(str(session.run("python", "-c", where, silent=True)).strip())


def compile_packages(session: nox.Session) -> None:
    """Compile all that is installed, and the torch that is lent, to bytecode, as pip does for a user.

    Otherwise what a first call imports would be compiled in each process, and that be timed.
    """
    packages = own_packages(session)
    folders = [str(packages), *(packages / "lent_torch.pth").read_text().split()]
    session.run("python", "-m", "compileall", "-q", "-j", "0", *folders, silent=True, success_codes=[0, 1])


def install_wheel(session: nox.Session, folder: str, *more: str, extras: str = "") -> None:
    """Install one package's wheel, with only what it declares, and `more`."""
    wheels = build_wheels(session)
    if needs_torch(folder):
        lend_torch(session)
    ours = [wheel_of(wheels, own, extras if own == folder else "") for own in own_dependencies(folder)]
    session.install(*INSTALL, "-c", str(constraints(session)), *ours, *more)


def wheel_of(wheels: Path, folder: str, extras: str = "") -> str:
    """The package's own wheel as a requirement: others in the registry may have its name, and a higher version."""
    name = str(project(folder)["project"]["name"])
    (file,) = wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return f"{name}{extras} @ {file.as_uri()}"


def test_requirements(folder: str) -> list[str]:
    """What a package's tests need beside the package: the common tools and its own `test` dependency group."""
    return [*GROUPS["test"], *project(folder).get("dependency-groups", {}).get("test", [])]


def run_package_tests(session: nox.Session, folder: str) -> None:
    """Test one package's wheel alone, away from its sources."""
    install_wheel(session, folder, *test_requirements(folder))
    run_tests(session, folder, *WORKERS)
    discard_environment(session)


def discard_environment(session: nox.Session) -> None:
    """Remove the session's environment, about a gigabyte where torch is in it, unless somebody sits before it.

    Ten of them at once are more than some machines' disks have free; nox makes each anew anyway, but under `-r`.
    """
    if not session.interactive:
        session.debug(f"removing {session.virtualenv.location}")
        shutil.rmtree(session.virtualenv.location)


def run_tests(session: nox.Session, folder: str, *options: str, env: dict[str, str] | None = None) -> None:
    """Run one package's tests against what is installed, away from its sources."""
    tests = ROOT / "packages" / folder / "tests"
    config = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tests}", "-p", "no:cacheprovider", *options]
    with session.chdir(session.create_tmp()):
        session.run("python", "-m", "pytest", *config, str(tests), *asked(session).rest, env=env)


@nox.session
def layers(session: nox.Session) -> None:
    """Imports go downwards only, no cycles, nothing undeclared or unused."""
    session.install(*INSTALL, *GROUPS["layers"])
    session.run("python", "tools/check_layers.py")
    sources = [str(ROOT / "packages" / folder / "src") for folder in PACKAGES]
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": ":".join(sources)})
    for folder in PACKAGES:
        with session.chdir(ROOT / "packages" / folder):
            session.run("deptry", "src", "--config", "pyproject.toml")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and formatting."""
    session.install(*INSTALL, *GROUPS["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over every package."""
    lend_torch(session)
    session.install(*INSTALL, *GROUPS["types"])
    session.run("mypy", *[str(ROOT / "packages" / folder / "src") for folder in PACKAGES], "tools", "noxfile.py")
    discard_environment(session)


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package's tests against its built wheel alone."""
    run_package_tests(session, package)


@nox.session
def integration(session: nox.Session) -> None:
    """Tests that cross packages, with every wheel installed."""
    run_integration_tests(session)


def run_integration_tests(session: nox.Session, *chosen: str) -> None:
    """Run the tests that cross packages, all or the chosen ones, against the wheels."""
    install_wheel(session, "framesmith", *GROUPS["test"], *GROUPS["peers"], *GROUPS["vision"], *GROUPS["operators"])
    files = [f"integration_tests/{name}" for name in chosen] or ["integration_tests"]
    session.run("python", "-m", "pytest", *WORKERS, *files, *asked(session).rest)


@nox.session(python=WITH_CUDA)
def simulated_gpu(session: nox.Session) -> None:
    """Tests that need a GPU, on one that is simulated (docs/design/0033): torch's build for CUDA, 2.5 GB, and gcc."""
    install_wheel(session, "framesmith", *GROUPS["test"], *GROUPS["peers"], *GROUPS["operators"])
    command = ["python", "-m", "pytest", "-p", "integration_tests.simulated_gpu.plugin", *WORKERS]
    chosen = ["-k", "on_a_gpu or real_device"]
    others = [f"--ignore={file}" for file in OF_RECORDINGS]
    session.run(*command, *chosen, *others, "packages/backends/tests", "integration_tests", *asked(session).rest)
    session.run(*command, *chosen, *OF_RECORDINGS, *asked(session).rest, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})


def may_have_torch(session: nox.Session) -> bool:
    """Whether to install torch: on this Python, and where `-- --with-torch` asks for it.

    The registry's torch for 3.12 and 3.13 is several GB with its CUDA libraries.
    """
    return asked(session).with_torch or session.python == HERE


@nox.session(python=PYTHONS)
@nox.parametrize("part", [*PACKAGES, INTEGRATION], ids=[*PACKAGES, INTEGRATION])
def matrix(session: nox.Session, part: str) -> None:
    """Every part on every CPython: the torch-free ones always, the rest where this interpreter may have torch.

    `-- --torch 2.15.0` chooses the release of torch; the wheels are the same for all of them.
    """
    if not may_have_torch(session) and part not in TORCH_FREE:
        session.skip(f"torch on {session.python} is asked for with -- --with-torch")
    if part == INTEGRATION:
        run_integration_tests(session)
    else:
        run_package_tests(session, part)


@nox.session
def newest(session: nox.Session) -> None:
    """A smoke suite and the demo on the newest release of torch that pip finds."""
    choose_torch(session, asked(session).torch or newest_torch(session))
    run_integration_tests(session, *SMOKE_TESTS)
    session.run("python", "-m", "examples.demo")


def newest_torch(session: nox.Session) -> str:
    """The newest release of torch for the session's Python."""
    session.install(*INSTALL, "pip>=23.1")
    command = ["python", "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    report = json.loads(str(session.run(*command, "torch", silent=True, stderr=None)))
    return str(report["install"][0]["metadata"]["version"])


@nox.session
def side_by_side(session: nox.Session) -> None:
    """The same wheels of the packages with C code, with every release of torch they are tested with."""
    for version in TORCHES:
        choose_torch(session, version)
        for folder in NATIVE:
            install_wheel(session, folder, *test_requirements(folder))
            run_tests(session, folder)


@nox.session
@nox.parametrize("package", NATIVE, ids=NATIVE)
def sanitizers(session: nox.Session, package: str) -> None:
    """The C code built for address and undefined-behaviour sanitisers, under the package's tests. Needs gcc.

    Leaks are not looked for: CPython and torch leave much behind on purpose; tests of the packages count references and
    memory. Freed memory is kept for a while, so that the tests of flat memory cannot hold.
    """
    install_wheel(session, package, *test_requirements(package))
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", project(package)["project"]["name"])
    copy = Path(session.create_tmp()).resolve() / package
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / package, copy)
    session.run("python", str(copy / "native_build.py"), *SANITIZE, env={"CC": "gcc"})
    libraries = [
        str(session.run("gcc", f"-print-file-name={name}", external=True, silent=True)).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    env = {
        "PYTHONPATH": str(copy / "src"),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    run_tests(session, package, "--capture=sys", "-k", "not memory_is_flat", env=env)


@nox.session
def wheels(session: nox.Session) -> None:
    """Put the wheel of every package into dist/: what the README's "Install" takes from."""
    DIST.mkdir(exist_ok=True)
    built = sorted(build_wheels(session).glob("*.whl"))
    for wheel in built:
        name, _, tags = wheel.name.split("-", 2)
        for old in DIST.glob(f"{name}-*-{tags}"):
            old.unlink()
        shutil.copy(wheel, DIST)
    session.log(f"{len(built)} wheels in {DIST}")


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def install(session: nox.Session, package: str) -> None:
    """One package from dist/ in a fresh environment, as the README's "Install" says, and its examples."""
    if not any(DIST.glob("*.whl")):
        session.error("dist/ has no wheels; `python -m nox -s wheels` puts them there")
    if needs_torch(package):
        lend_torch(session)
    wanted = str(project(package)["project"]["name"])
    if package == "backends":  # which machine its example is for
        wanted += "[cpu]"
    if wanted == "framesmith":  # the registry may have another project's of this name, of a higher version
        wanted = wheel_of(DIST, package)
    session.install(*INSTALL, "-c", str(constraints(session)), "--find-links", str(DIST), wanted)
    session.run("python", "-m", "pip", "check")
    session.run("python", "tools/run_examples.py", f"packages/{package}/README.md")
    discard_environment(session)


@nox.session
def demo(session: nox.Session) -> None:
    """Build and install everything, and run the main job."""
    install_wheel(session, "framesmith", *GROUPS["peers"])
    session.run("python", "-m", "examples.demo", *asked(session).rest)


@nox.session
def bench(session: nox.Session) -> None:
    """`nox -s bench -- kernels --json FILE`: the benchmarks, candidates interleaved."""
    install_wheel(session, "framesmith", *GROUPS["peers"])
    compile_packages(session)
    session.run("python", "-m", "benchmarks", *asked(session).rest)


@nox.session(python=PYTHONS)
def nightly(session: nox.Session) -> None:
    """The long runs, on every CPython there is.

    bytecode: every function of the standard library and of what is installed, CPython's own tests re-encoded, 100,000
    splits, the fuzz tests in full; each part ends with its counts. guards, on this Python: agreement and stress tests.
    """
    torch = ["torch"] if may_have_torch(session) else []
    install_wheel(session, "bytecode", *test_requirements("bytecode"), *GROUPS["peers"], *torch)
    session.run("python", "-m", "framesmith_bytecode.corpus")
    session.run("python", "-m", "pytest", "packages/bytecode/tests", env={"FRAMESMITH_LONG": "1"})
    if session.python == HERE:
        install_wheel(session, "guards", *test_requirements("guards"))
        session.run("python", "-m", "pytest", "packages/guards/tests", env={"FRAMESMITH_LONG": "1"})
