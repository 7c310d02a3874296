"""The agent as one file: built, run where there is no Python, and by the agent's own tests."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import patience
from end_to_end import installed
from forewarn.version import __version__
from house.tree import ROOT

SUITE = sorted(ROOT.glob("tests/end_to_end/test_agent*.py"))
LEFT_OUT = "kill_at_any_write and not 3-during"
"""The code is the same in each: one torn journal shows that this SQLite can read on too."""

MAX_BYTES = 30_000_000

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        platform.machine() != "x86_64" or not Path("/usr/include/python3.11/Python.h").exists(),
        reason="the one file is built on Debian 12 with libpython3.11-dev",
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (made,) = installed.once("onefile", tmp_path_factory).iterdir()
    return made


@pytest.fixture
def bare(tmp_path: Path, program: Path) -> list[str]:
    """A root with the file and nothing else, and how to run it there."""
    if os.geteuid() != 0:
        pytest.skip("root changes the root")
    root = tmp_path / "root"
    for name in ("proc", "tmp", "etc/forewarn", "etc/systemd/system", "usr/local/bin"):
        (root / name).mkdir(parents=True)
    shutil.copy(program, root / "usr/local/bin/forewarn")
    inside = f'mount -t proc proc {root}/proc; exec chroot {root} "$@"'
    argv = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", inside, "sh"]
    return [*argv, "/usr/local/bin/forewarn"]


def test_it_is_small_and_links_nothing(program: Path) -> None:
    assert program.stat().st_size < MAX_BYTES
    sections = subprocess.run(
        ["readelf", "-l", program], capture_output=True, text=True, check=True
    )
    assert "INTERP" not in sections.stdout


def test_it_runs_where_there_is_nothing_else(bare: list[str], tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [*bare, *arguments], capture_output=True, text=True, check=True
        ).stdout

    assert run("--version") == f"forewarn {__version__}\n"
    run("agent", "install", "--root", "/")
    root = tmp_path / "root"
    unit = (root / "etc/systemd/system/forewarn-agent.service").read_text()
    assert "\nExecStart=/usr/local/bin/forewarn agent run\n" in unit
    assert "write down what nothing else takes" in run("agent", "check")
    verify = "import ssl, sqlite3; print(ssl.OPENSSL_VERSION_INFO >= (3,))"
    assert run("-c", verify) == "True\n"


def test_a_running_agent_goes_on_while_its_file_is_replaced(program: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(program, tmp_path / "forewarn"))
    code = "import sys\nprint(flush=True)\nsys.stdin.read()\nimport ssl, decimal\nprint('goes on')"
    with subprocess.Popen(
        [copy, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / "new").write_text("another file")
        (tmp_path / "new").replace(copy)
        assert process.communicate(timeout=patience.SECONDS)[0] == "goes on\n"
    assert process.returncode == 0


def test_names_are_looked_up_without_the_machines_libraries(program: Path) -> None:
    code = (
        "import socket, pwd, os\n"
        "print(socket.getaddrinfo('localhost', 'http')[0][4][1], pwd.getpwuid(0).pw_name)\n"
        "try: socket.getaddrinfo('nowhere.invalid', 80)\n"
        "except socket.gaierror: print('unknown')\n"
        "print([line for line in open('/proc/self/maps') if '.so' in line])"
    )
    said = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "80 root\nunknown\n[]\n"


def test_the_agents_tests_pass_against_it(program: Path) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider"]
    argv += ["-k", f"not ({LEFT_OUT})", *map(str, SUITE)]
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    given = {**own, "FOREWARN_AGENT_PROGRAM": str(program)}
    ran = subprocess.run(argv, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-6000:]
