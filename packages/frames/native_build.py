"""Compile the C extension of framesmith-frames with the interpreter's own C compiler (standard library only).

`python native_build.py` builds it in place for the running interpreter; the wheel's hook calls `compile_extension`.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src" / "framesmith_frames"
SOURCES = PACKAGE / "_native"
FLAGS = ("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")


class BuildError(Exception):
    """The extension cannot be built here; the message says what to install."""


def extension_name() -> str:
    """File name of the extension for the running interpreter, with its ABI tag."""
    return f"_hook{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_extension(target: Path, extra_flags: Sequence[str] = ()) -> Path:
    """Compile every C file below `_native` into one shared library at `target`."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError(
            "framesmith-frames does not support free-threaded CPython: use a build of CPython with the GIL."
        )
    compiler = _compiler()
    include = _include_directory()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    sources = [str(path) for path in sorted(SOURCES.rglob("*.c"))]
    command = [
        *compiler,
        *FLAGS,
        *extra_flags,
        f"-I{include}",
        f"-I{SOURCES}",
        *sources,
        *_link_flags(),
        "-o",
        str(partial),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"The C compiler failed on framesmith-frames' extension:\n{' '.join(command)}\n{done.stderr}")
    sys.stderr.write(done.stderr)
    os.replace(partial, target)
    return target


def _compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(words[0]) is not None:
        return words
    for name in ("cc", "gcc", "clang"):
        if "CC" not in os.environ and shutil.which(name) is not None:
            return [name]
    raise BuildError(
        f"framesmith-frames compiles a C extension and found no C compiler ({words[0]!r} is not on the PATH). "
        "Install one (Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc; macOS: xcode-select --install) "
        "or name one in CC."
    )


def _include_directory() -> str:
    include = Path(sysconfig.get_path("include"))
    version = sysconfig.get_python_version()
    for header in ("Python.h", "internal/pycore_frame.h"):
        if not (include / header).is_file():
            raise BuildError(
                f"framesmith-frames compiles a C extension and found no {header} in {include}. Install the headers "
                f"of CPython {version} (Debian, Ubuntu: apt install python{version}-dev; Fedora: dnf install "
                f"python{version}-devel)."
            )
    return str(include)


def _link_flags() -> list[str]:
    if sys.platform == "darwin":
        return ["-bundle", "-undefined", "dynamic_lookup"]
    return ["-shared"]


def main() -> int:
    """Build in place; extra compiler flags may follow on the command line."""
    try:
        print(compile_extension(PACKAGE / extension_name(), sys.argv[1:]))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
