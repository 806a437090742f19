"""Every check of the repository. `nox` runs the default ones; `nox -l` lists all.

Packages are tested as wheels, each in an environment of its own with only what it declares
(`tools/environments.py`).
`-- --torch VERSION` runs any session with that release of torch in place of the one in constraints.txt.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.environments import (  # noqa: E402
    GROUPS,
    HERE,
    INSTALL,
    PACKAGES,
    build_wheels,
    checkers,
    compile_packages,
    constraints,
    environment_of,
    install_sources,
    install_wheel,
    layer,
    needs_torch,
    options_of,
    peers,
    pip,
    project,
    run_tests,
    see,
    sources,
    test_requirements,
    torch_layer,
    wheel_of,
)
from tools.interpreters import find_interpreter, has_jit  # noqa: E402

#: Modules are compiled to bytecode once, not by each process: what is installed has none (`environments.INSTALL`).
os.environ.update(PYTHONPYCACHEPREFIX=str(ROOT / ".nox" / "bytecode"), PYTHONDONTWRITEBYTECODE="")

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

DIST = ROOT / "dist"
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
TORCH_FREE = ["bytecode", "frames"]
#: The torch-free packages run on every Python that is found.
OTHERS = [python for python in PYTHONS if python != HERE and find_interpreter(python)]
nox.options.sessions = ["layers", "lint", "types", "tests", "integration"]
nox.options.sessions += [f"matrix-{python}({package})" for python in OTHERS for package in TORCH_FREE]
nox.options.sessions += [f"jit-{python}(frames)" for python in PYTHONS if has_jit(python)]
#: Packages with C code: their binaries serve every torch from the oldest of these to the newest.
NATIVE = ["frames", "guards"]
TORCHES = ["2.11.0", "2.13.0", "2.14.1", "2.15.0"]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
#: CPython's JIT is off unless it is asked for.
WITH_JIT = {"PYTHON_JIT": "1"}
#: Environments without pip: `tools/environments.py` has one that serves all.
BARE = ["--without-pip"]
#: Tests run in two processes: each begins with one half, and the first to finish takes over tests of the other.
WORKERS = ["-n", "2", "--dist", "worksteal"]
#: Pythons for which the registry's torch is built for CUDA.
WITH_CUDA = ["3.12"]
#: Tests of captured CUDA graphs, which look at the memory that torch's allocator holds.
CAPTURED = [
    "packages/backends/tests/cuda_graphs/test_capturer.py",
    "integration_tests/kernels/test_captured_training.py",
]
#: Options and variables for runs in full: tests marked `nightly` as well, and all cases of sweeps.
IN_FULL = ["-m", ""]
LONG = {"FRAMESMITH_LONG": "1"}
#: Parts of the nightly run: packages, and folders of integration tests.
NIGHTLY = [*PACKAGES, *sorted({file.parent.name for file in (ROOT / "integration_tests").glob("*/test_*.py")})]
#: The folder that crosses packages, among the parts of the matrix.
INTEGRATION = "integration"
#: Run with a release of torch that no other check has seen yet.
SMOKE_TESTS = [
    "tiny",
    "repository/test_readmes.py",
    "api/test_compile.py",
    "api/test_torch_compile_entry_point.py",
    "training/optimizers/test_optimizers.py",
    "errors/test_failures.py",
    "operators/test_custom_operators.py",
]


def choose_torch(session: nox.Session, release: str) -> None:
    """Run the rest of the session with a release of torch."""
    session.log(f"torch {release}")
    session.posargs[:] = ["--torch", release, *options_of(session).rest]


@nox.session(venv_backend="none")
def layers(session: nox.Session) -> None:
    """Imports go downwards only, no cycles, nothing undeclared or unused; the page draws the graph as it is."""
    check_layers(session)


def check_layers(session: nox.Session) -> None:
    """Run the checks of dependencies between packages and inside them."""
    scripts = checkers(session) / "bin"
    session.run(str(scripts / "python"), "tools/check_layers.py", external=True)
    session.run(str(scripts / "python"), "tools/check_native_layers.py", external=True)
    session.run(str(scripts / "python"), "-m", "tools.draw_layers", "--check", external=True)
    session.run(str(scripts / "lint-imports"), "--no-cache", env={"PYTHONPATH": sources()}, external=True)
    for folder in PACKAGES:
        with session.chdir(ROOT / "packages" / folder):
            session.run(str(scripts / "deptry"), "src", "--config", "pyproject.toml", external=True)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff's rules and formatting, and the field's words."""
    check_style(session)


def check_style(session: nox.Session) -> None:
    """Run ruff and the check of words over the repository."""
    scripts = checkers(session) / "bin"
    session.run(str(scripts / "ruff"), "check", ".", external=True)
    session.run(str(scripts / "ruff"), "format", "--check", ".", external=True)
    session.run(str(scripts / "python"), "tools/check_words.py", external=True)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """mypy, strict, over every package."""
    check_types(session, *[f"packages/{folder}/src" for folder in PACKAGES], "tools", "noxfile.py")


def check_types(session: nox.Session, *paths: str) -> None:
    """Run mypy over paths; its cache is in .nox."""
    mypy = str(checkers(session) / "bin" / "mypy")
    session.run(mypy, "--cache-dir", ".nox/mypy", *paths, external=True)


@nox.session(venv_params=BARE)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package's tests against its built wheel alone."""
    run_package_tests(session, package)


def run_package_tests(session: nox.Session, folder: str) -> None:
    """Test one package's wheel alone, away from its sources."""
    install_wheel(session, folder, *test_requirements(folder))
    run_tests(session, folder, *WORKERS)


@nox.session(venv_params=BARE)
def integration(session: nox.Session) -> None:
    """Tests that cross packages, with every wheel installed."""
    run_integration_tests(session)


def run_integration_tests(session: nox.Session, *options: str, env: dict[str, str] | None = None) -> None:
    """Run the tests that cross packages, all or those that the options name, against the wheels."""
    install_wheel(session, "framesmith", layers=[peers(session)])
    paths = [] if any(option.startswith("integration_tests/") for option in options) else ["integration_tests"]
    session.run("python", "-m", "pytest", *WORKERS, *paths, *options, *options_of(session).rest, env=env)


@nox.session(venv_params=BARE, reuse_venv=True)
def quick(session: nox.Session) -> None:
    """Layers, lint, types of what changed, and the tiny tests of each package, on the sources: under two minutes."""
    check_layers(session)
    check_style(session)
    changed = changed_sources(session)
    if changed:
        check_types(session, *changed)
    install_sources(session)
    tiny = [f"packages/{folder}/tests/test_tiny.py" for folder in PACKAGES]
    session.run("python", "-m", "pytest", *tiny, "integration_tests/tiny", *options_of(session).rest)


def changed_sources(session: nox.Session) -> list[str]:
    """Return the sources that mypy checks and that differ from main; from the commit before on main, or without one."""

    def git(*arguments: str) -> str:
        return str(session.run("git", *arguments, external=True, silent=True, log=False))

    known = git("for-each-ref", "--format=%(refname:short)", "refs/heads/main", "refs/remotes/origin/main").split()
    base = git("merge-base", "HEAD", known[0]).strip() if known else "HEAD~1"
    if base == git("rev-parse", "HEAD").strip():
        base = "HEAD~1"
    files = [*git("diff", "--name-only", base).split(), *git("ls-files", "--others", "--exclude-standard").split()]
    candidates = [*[f"packages/{folder}/src" for folder in PACKAGES], "tools", "noxfile.py"]
    return [path for path in candidates if any(file == path or file.startswith(f"{path}/") for file in files)]


@nox.session(python=WITH_CUDA, venv_params=BARE)
def simulated_gpu(session: nox.Session) -> None:
    """Tests that need a GPU, on a simulated one (docs/design/gpu/0033): torch's build for CUDA, 2.5 GB, and gcc."""
    install_wheel(session, "framesmith", layers=[layer(session, "peers", "operators", below=[torch_layer(session)])])
    command = ["python", "-m", "pytest", "-p", "integration_tests.simulated_gpu.plugin", *WORKERS]
    chosen = ["-k", "on_a_gpu or real_device"]
    others = [f"--ignore={file}" for file in CAPTURED]
    session.run(*command, *chosen, *others, "packages/backends/tests", "integration_tests", *options_of(session).rest)
    session.run(*command, *chosen, *CAPTURED, *options_of(session).rest, env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})


def may_have_torch(session: nox.Session) -> bool:
    """Return whether to install torch: on this Python, and where `-- --with-torch` asks for it.

    The registry's torch is several GB with its CUDA libraries.
    """
    return options_of(session).with_torch or session.python == HERE


def skip_without_torch(session: nox.Session, part: str) -> None:
    """Skip a part that needs torch where the session may not have it."""
    if not may_have_torch(session) and part not in TORCH_FREE:
        session.skip(f"torch on {session.python} is asked for with -- --with-torch")


@nox.session(python=PYTHONS, venv_params=BARE)
@nox.parametrize("part", [*PACKAGES, INTEGRATION], ids=[*PACKAGES, INTEGRATION])
def matrix(session: nox.Session, part: str) -> None:
    """Every part on every CPython: the torch-free ones always, the rest where this interpreter may have torch.

    `-- --torch 2.15.0` chooses the release of torch; the wheels are the same for all of them.
    """
    skip_without_torch(session, part)
    if part == INTEGRATION:
        run_integration_tests(session)
    else:
        run_package_tests(session, part)


@nox.session(venv_params=BARE)
def newest(session: nox.Session) -> None:
    """A smoke suite and the demo on the newest release of torch that pip finds."""
    choose_torch(session, options_of(session).torch or newest_torch(session))
    run_integration_tests(session, *[f"integration_tests/{name}" for name in SMOKE_TESTS])
    session.run("python", "-m", "examples.demo")


def newest_torch(session: nox.Session) -> str:
    """Return the newest release of torch for the session's Python."""
    report = Path(session.create_tmp()).resolve() / "report.json"
    command = ["install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
    pip(session, environment_of(session), *command, "torch")
    return str(json.loads(report.read_text())["install"][0]["metadata"]["version"])


@nox.session(venv_params=BARE)
def side_by_side(session: nox.Session) -> None:
    """The same wheels of the packages with C code, with every release of torch they are tested with."""
    for version in TORCHES:
        choose_torch(session, version)
        for folder in NATIVE:
            install_wheel(session, folder, *test_requirements(folder))
            run_tests(session, folder)


@nox.session(python=PYTHONS, venv_params=BARE)
@nox.parametrize("package", NATIVE, ids=NATIVE)
def sanitizers(session: nox.Session, package: str) -> None:
    """The C code built for address and undefined-behaviour sanitisers, under the package's tests. Needs gcc.

    Guards need torch: on other Pythons `-- --with-torch` asks for it.
    Leaks are not looked for: CPython and torch leave much behind on purpose; tests of the packages count references and
    memory. Freed memory is held for a while, so that the tests of flat memory cannot pass.
    """
    skip_without_torch(session, package)
    install_wheel(session, package, *test_requirements(package))
    pip(session, environment_of(session), "uninstall", "-q", "-y", project(package)["project"]["name"])
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


@nox.session(python=PYTHONS, venv_params=BARE)
@nox.parametrize("package", NATIVE, ids=NATIVE)
def jit(session: nox.Session, package: str) -> None:
    """The packages with C code under CPython's experimental JIT, on each CPython that is built with it."""
    skip_without_torch(session, package)
    if not has_jit(str(session.python)):
        session.skip(f"this CPython {session.python} is built without the JIT")
    install_wheel(session, package, *test_requirements(package))
    run_tests(session, package, *WORKERS, env=WITH_JIT)


@nox.session(python=PYTHONS, venv_params=BARE)
def wheels(session: nox.Session) -> None:
    """Put the wheels of every package, for each Python that is found, into dist/: the README's "Install" takes them."""
    DIST.mkdir(exist_ok=True)
    built = sorted(build_wheels(session, PACKAGES if session.python == HERE else NATIVE).glob("*.whl"))
    for wheel in built:
        name, _, tags = wheel.name.split("-", 2)
        for old in DIST.glob(f"{name}-*-{tags}"):
            old.unlink()
        shutil.copy(wheel, DIST)
    session.log(f"{len(built)} wheels in {DIST}")


@nox.session(venv_params=BARE)
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def install(session: nox.Session, package: str) -> None:
    """One package from dist/ in a fresh environment, as the README's "Install" says, and its examples."""
    if not any(DIST.glob("*.whl")):
        session.error("dist/ has no wheels; `python -m nox -s wheels` puts them there")
    environment = environment_of(session)
    if needs_torch(package):
        see(environment, torch_layer(session))
    wanted = str(project(package)["project"]["name"])
    if package == "backends":  # which machine its example is for
        wanted += "[cpu]"
    if wanted == "framesmith":  # the registry may have another project's of this name, of a higher version
        wanted = wheel_of(DIST, package)
    pip(session, environment, *INSTALL, "-c", str(constraints(session)), "--find-links", str(DIST), wanted)
    pip(session, environment, "check")
    session.run("python", "tools/run_examples.py", f"packages/{package}/README.md")


@nox.session(venv_params=BARE)
def demo(session: nox.Session) -> None:
    """Build and install everything, and run the main job."""
    install_wheel(session, "framesmith", layers=[peers(session)])
    session.run("python", "-m", "examples.demo", *options_of(session).rest)


@nox.session(venv_params=BARE)
def bench(session: nox.Session) -> None:
    """`nox -s bench -- kernels --json FILE`: the benchmarks, candidates interleaved."""
    install_wheel(session, "framesmith", layers=[peers(session)])
    compile_packages(session)
    session.run("python", "-m", "benchmarks", *options_of(session).rest)


@nox.session(python=PYTHONS, venv_params=BARE)
@nox.parametrize("part", NIGHTLY, ids=NIGHTLY)
def nightly(session: nox.Session, part: str) -> None:
    """Every test in full, in parts that machines can share: each package, each folder of integration tests.

    Tests marked `nightly` run, sweeps take all of their cases, random tests their full counts. The parts without torch
    run on every CPython there is, the others on this one, and `-- --with-torch` on all.
    """
    skip_without_torch(session, part)
    if part in PACKAGES:
        install_wheel(session, part, *test_requirements(part))
        run_tests(session, part, *WORKERS, *IN_FULL, env=LONG)
    else:
        run_integration_tests(session, f"integration_tests/{part}", *IN_FULL, env=LONG)


@nox.session(python=PYTHONS, venv_params=BARE)
def corpus(session: nox.Session) -> None:
    """Every function of the standard library, torch and the peers through the bytecode package; prints counts."""
    torch = ["torch"] if may_have_torch(session) else []
    install_wheel(session, "bytecode", *GROUPS["peers"], *torch)
    session.run("python", "-m", "framesmith_bytecode.corpus")
