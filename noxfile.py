"""Every check of the repository. `nox` runs the default ones; `nox -l` lists all.

Packages are tested as wheels, each in an environment of its own holding only what it declares.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["layers", "lint", "types", "tests", "integration"]
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
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
TORCHES = ["2.11.0", "2.13.0"]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
#: Python compiles what is imported; compiling all of torch takes longer than most packages' tests.
INSTALL = ["-q", "--no-compile"]
#: What every package's tests need.
TEST_TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["test"]
LINT_TOOLS = ["ruff>=0.9,<0.18"]
TYPE_TOOLS = ["mypy>=1.15", "nox", "pytest>=8", "hypothesis>=6.100"]
#: Tests run in two processes: each begins with one half, and who has done takes over what the other has left.
WORKERS = ["-n", "2", "--dist", "worksteal"]
#: Where the registry's torch is built for CUDA.
WITH_CUDA = ["3.12"]
#: Tests of recorded graphs, which look at the memory that torch's allocator keeps.
OF_RECORDINGS = ["packages/backends/tests/launch/test_cuda_graphs.py", "integration_tests/test_recorded_training.py"]
#: What torch's own database of operators needs.
OPERATOR_TOOLS = ["expecttest"]
PEERS = ["transformers>=4.50", "scikit-learn>=1.4", "pandas>=2.0", "scipy>=1.11", "pyyaml>=6.0", "matplotlib>=3.8"]
#: Each release is for one release of torch: pip takes the one that constraints.txt allows. Its Python parts suffice.
VISION_PEERS = ["torchvision>=0.26"]


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
    pinned = (ROOT / "constraints.txt").read_text().strip()
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
    session.install(*INSTALL, "-c", str(ROOT / "constraints.txt"), *ours, *more)


def wheel_of(wheels: Path, folder: str, extras: str = "") -> str:
    """The package's own wheel as a requirement: others in the registry may have its name, and a higher version."""
    name = str(project(folder)["project"]["name"])
    (file,) = wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return f"{name}{extras} @ {file.as_uri()}"


def test_requirements(folder: str) -> list[str]:
    """What a package's tests need beside the package: the common tools and its own `test` dependency group."""
    return [*TEST_TOOLS, *project(folder).get("dependency-groups", {}).get("test", [])]


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
        session.run("python", "-m", "pytest", *config, str(tests), *session.posargs, env=env)


@nox.session
def layers(session: nox.Session) -> None:
    """Imports go downwards only, no cycles, nothing undeclared or unused."""
    session.install(*INSTALL, "import-linter>=2.4", "deptry>=0.23")
    session.run("python", "tools/check_layers.py")
    sources = [str(ROOT / "packages" / folder / "src") for folder in PACKAGES]
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": ":".join(sources)})
    for folder in PACKAGES:
        with session.chdir(ROOT / "packages" / folder):
            session.run("deptry", "src", "--config", "pyproject.toml")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and formatting."""
    session.install(*INSTALL, *LINT_TOOLS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over every package."""
    lend_torch(session)
    session.install(*INSTALL, *TYPE_TOOLS, "numpy")
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
    install_wheel(session, "framesmith", *TEST_TOOLS, *PEERS, *VISION_PEERS, *OPERATOR_TOOLS)
    session.run("python", "-m", "pytest", *WORKERS, "integration_tests", *session.posargs)


@nox.session(python=WITH_CUDA)
def simulated_gpu(session: nox.Session) -> None:
    """Tests that need a GPU, on one that is simulated (docs/design/0033): torch's build for CUDA, 2.5 GB, and gcc."""
    install_wheel(session, "framesmith", *TEST_TOOLS, *PEERS, *OPERATOR_TOOLS)
    command = ["python", "-m", "pytest", "-p", "integration_tests.simulated_gpu.plugin", *WORKERS]
    chosen = ["-k", "on_a_gpu or real_device"]
    others = [f"--ignore={file}" for file in OF_RECORDINGS]
    session.run(*command, *chosen, *others, "packages/backends/tests", "integration_tests", *session.posargs)
    session.run(*command, *chosen, *OF_RECORDINGS, *session.posargs, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})


def may_have_torch(session: nox.Session) -> bool:
    """Whether to install torch: on this Python, and where `-- --with-torch` asks for it.

    The registry's torch for 3.12 and 3.13 is several GB with its CUDA libraries.
    """
    asked = "--with-torch" in session.posargs
    session.posargs[:] = [arg for arg in session.posargs if arg != "--with-torch"]
    return asked or session.python == HERE


@nox.session(python=PYTHONS)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def matrix(session: nox.Session, package: str) -> None:
    """Packages on every CPython: the torch-free ones always, the rest where this interpreter may have torch."""
    if not may_have_torch(session) and package not in TORCH_FREE:
        session.skip(f"torch on {session.python} is asked for with -- --with-torch")
    run_package_tests(session, package)


@nox.session
def side_by_side(session: nox.Session) -> None:
    """The same wheels of the packages with C code, with the oldest torch they serve and with the newest."""
    wheels = build_wheels(session)
    for version in TORCHES:
        session.install(*INSTALL, f"torch=={version}", *[wheel_of(wheels, folder) for folder in NATIVE], *TEST_TOOLS)
        for folder in NATIVE:
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
def demo(session: nox.Session) -> None:
    """Build and install everything, and run the main job."""
    install_wheel(session, "framesmith", *PEERS)
    session.run("python", "-m", "examples.demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """`nox -s bench -- kernels --json FILE`: the benchmarks, candidates interleaved."""
    install_wheel(session, "framesmith", *PEERS)
    compile_packages(session)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session(python=PYTHONS)
def nightly(session: nox.Session) -> None:
    """The long runs, on every CPython there is.

    bytecode: every function of the standard library and of what is installed, CPython's own tests re-encoded, 100,000
    splits, the fuzz tests in full; each part ends with its counts. guards, on this Python: agreement and stress tests.
    """
    torch = ["torch"] if may_have_torch(session) else []
    install_wheel(session, "bytecode", *test_requirements("bytecode"), *PEERS, *torch)
    session.run("python", "-m", "framesmith_bytecode.corpus")
    session.run("python", "-m", "pytest", "packages/bytecode/tests", env={"FRAMESMITH_LONG": "1"})
    if session.python == HERE:
        install_wheel(session, "guards", *test_requirements("guards"))
        session.run("python", "-m", "pytest", "packages/guards/tests", env={"FRAMESMITH_LONG": "1"})
