"""Builds the agent as one file with its own Python, for every x86-64 Linux: `make onefile`.

Nothing of the machine is linked at run time. It needs Debian 12, whose static libraries it takes;
docs/decisions/0028 says why this way. The file is a static Python (packaging/onefile/main.c) and a
zip behind it: Python's library, the packages, Forewarn.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from forewarn.version import __version__

ROOT: Final = Path(__file__).resolve().parents[1]
MAIN: Final = ROOT / "packaging" / "onefile" / "main.c"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forewarn"

PACKAGES: Final = (
    *("dpkg-dev", "gcc", "libbluetooth-dev", "libc6-dev", "libexpat1-dev", "libpython3.11-dev"),
    *("libpython3.11-stdlib", "libsqlite3-dev", "libssl-dev", "zlib1g-dev"),
)
"""What Debian has to have installed; their versions are written down in the file."""

LIBRARY: Final = Path("/usr/lib/python3.11")
LEFT_OUT: Final = (
    *("__pycache__", "config-*", "*.so", "ctypes", "curses", "distutils", "ensurepip", "idlelib"),
    *("lib2to3", "lib-dynload", "pydoc_data", "sitecustomize.py", "test", "tests", "tkinter"),
    *("turtle*", "unittest", "venv"),
)
"""Of Python's library: what needs other libraries, builds packages, or tests."""

MODULES: Final = (
    *("_asynciomodule.c", "_contextvarsmodule.c", "_decimal/_decimal.c", "_hashopenssl.c"),
    *("_json.c", "_queuemodule.c", "_ssl.c", "_typingmodule.c", "mmapmodule.c", "resource.c"),
    *("termios.c", "_sqlite/*.c", "_decimal/libmpdec/*.c"),
)
"""C files of modules that libpython3.11.a does not have: in Debian they are libraries."""

NOT_PARTS: Final = ("bench.c", "bench_full.c")
FLAGS: Final = (
    *("-O2", "-DNDEBUG", "-fwrapv", "-fno-strict-aliasing", "-DPy_BUILD_CORE_BUILTIN"),
    *("-I/usr/include/python3.11", "-I/usr/include/python3.11/internal", '-DMODULE_NAME="sqlite3"'),
    *("-DCONFIG_64", "-DANSI", "-DHAVE_UINT128_T"),  # libmpdec's
)
LIBRARIES: Final = (
    *("-L/usr/lib/python3.11/config-3.11-x86_64-linux-gnu", "-lpython3.11"),
    *("-lssl", "-lcrypto", "-lsqlite3", "-lexpat", "-lz", "-lm"),
)


def build(to: Path) -> Path:
    """Build the file in a folder; return its path."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        python = _python(folder)
        tree = folder / "tree"
        wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        _run(wheel, ROOT)
        install = [*_pip("install"), "--no-compile", "--no-deps", "--target", str(tree)]
        _run([*install, "--require-hashes", "-r", str(ROOT / "requirements/agent.txt")], ROOT)
        _run([*install, *map(str, folder.glob("*.whl"))], ROOT)
        for library in tree.rglob("*.so"):
            library.unlink()
        core = "import sys\n\nimport msgspec_core\n\nsys.modules[__name__] = msgspec_core\n"
        (tree / "msgspec" / "_core.py").write_text(core, encoding="utf-8")
        (tree / "BUILT_FROM.txt").write_text(_versions(), encoding="utf-8")
        for unused in ("bin", "share"):
            shutil.rmtree(tree / unused, ignore_errors=True)
        to.mkdir(parents=True, exist_ok=True)
        file = Path(shutil.copy(python, to / f"forewarn-agent-{__version__}-linux-x86_64"))
        _add(tree, file, python)
    return file


def _python(folder: Path) -> Path:
    """Return the Python with its library: from the cache, or built by a minute of one core."""
    inputs = [Path(__file__).read_text(), MAIN.read_text(), _versions(), _msgspec()]
    kept = CACHE / "onefile" / hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:16]
    if not kept.exists():
        python = folder / "python"
        _compile(folder, python)
        tree = folder / "library"
        shutil.copytree(LIBRARY, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        with zipfile.ZipFile(folder / "sources.zip", "w") as sources:
            _write(tree, sources, "*.py")
        first = folder / "first"  # which compiles the library that the second one has
        first.write_bytes(python.read_bytes() + (folder / "sources.zip").read_bytes())
        first.chmod(0o755)
        _add(tree, python, first)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(python, new := kept.with_name(f"{kept.name}.{os.getpid()}"))
        new.replace(kept)
    return kept


def _compile(folder: Path, python: Path) -> None:
    source = _python_source(folder) / "Modules"
    _run(
        [*_pip("download"), "--no-deps", "--no-binary=:all:", "-d", str(folder), _msgspec()], folder
    )
    _run(["tar", "xf", *map(str, folder.glob("msgspec-*.tar.gz"))], folder)
    files = [file for pattern in MODULES for file in sorted(source.glob(pattern))]
    files += [MAIN, *folder.glob("msgspec-*/src/msgspec/_core.c")]
    objects = []
    for number, file in enumerate(file for file in files if file.name not in NOT_PARTS):
        objects.append(str(folder / f"{number}.o"))
        places = [f"-I{source / each}" for each in (".", "_decimal/libmpdec")]
        _run(["gcc", *FLAGS, *places, "-c", str(file), "-o", objects[-1]], folder)
    _run(["gcc", "-static", "-s", *objects, *LIBRARIES, "-o", str(python)], folder)


def _python_source(folder: Path) -> Path:
    """Unpack Debian's source package of Python, patches applied, by the machine's own mirror."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    parts = folder / "sources"
    shutil.copytree("/etc/apt/sources.list.d", parts)
    for file in parts.glob("*.sources"):
        file.write_text(file.read_text().replace("Types: deb\n", "Types: deb-src\n"))
    own = {"Dir::Etc::sourceparts": parts, "Dir::State::lists": lists, "APT::Sandbox::User": "root"}
    options = [f"-o{name}={value}" for name, value in own.items()]
    _run(["apt-get", "-qq", *options, "update"], folder)
    # Some mirrors have a security update's packages and not its source: then the release's.
    source = ["apt-get", "-qq", *options, "source"]
    newest = subprocess.run(  # noqa: S603 - our own words
        [*source, "python3.11"], cwd=folder, capture_output=True, check=False
    )
    if newest.returncode:
        _run([*source, "python3.11/bookworm"], folder)
    return next(folder.glob("python3.11-*/"))


def _add(tree: Path, file: Path, python: Path) -> None:
    """Compile a tree by that Python, and add it to the zip behind the file."""
    argv = [str(python), "-m", "compileall", "-q", "-b", "-d", "", "--invalidation-mode"]
    _run([*argv, "unchecked-hash", str(tree)], tree)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as zipped:
        _write(tree, zipped, "*")


def _write(tree: Path, zipped: zipfile.ZipFile, pattern: str) -> None:
    for path in sorted(tree.rglob(pattern)):
        if path.is_file() and (path.suffix != ".py" or pattern == "*.py"):
            zipped.write(path, path.relative_to(tree))


def _versions() -> str:
    argv = ["dpkg-query", "-W", "-f=${source:Package} ${Version}\n", *PACKAGES]
    return _run(argv, ROOT)


def _msgspec() -> str:
    lines = (ROOT / "requirements/agent.txt").read_text().splitlines()
    return next(line.split()[0] for line in lines if line.startswith("msgspec=="))


def _pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", command, "--quiet"]


def _run(argv: list[str], folder: Path) -> str:
    ran = subprocess.run(  # noqa: S603 - our own words
        argv, cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"{argv[0]} failed:\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}")
    return ran.stdout


if __name__ == "__main__":
    made = build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
    sys.stdout.write(f"{made}  {made.stat().st_size / 1e6:.1f} MB\n")
