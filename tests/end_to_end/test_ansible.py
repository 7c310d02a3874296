"""The role for Ansible, run by ansible-core against a Debian with its own systemd."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from end_to_end import installed
from forewarn.version import __version__
from house.tree import ROOT
from patience import until

TOOLS = ("mmdebstrap", "dpkg-buildpackage", "dh", "systemd-nspawn", "nsenter")
ANSIBLE = ROOT / ".venv-ansible"
ROLES = ROOT / "packaging" / "ansible"
PLAYBOOK = re.findall(r"(?ms)^```yaml\n(.*?)^```$", (ROOT / "docs/guides/ansible.md").read_text())[
    0
]

SSH = """#!/bin/sh
# Stands in for ssh: its last argument is the command.
for command; do :; done
exec nsenter --target {leader} --all env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    sh -c "$command"
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
        reason=f"root makes a Debian and boots it, with {', '.join(TOOLS)}",
    ),
]


class Machine:
    """A Debian in namespaces, and Ansible's way to it."""

    def __init__(self, folder: Path, leader: int) -> None:
        self._folder = folder
        self._ssh = folder / "ssh"
        self._ssh.write_text(SSH.format(leader=leader))
        self._ssh.chmod(0o755)

    def run(self, command: str, *, check: bool = True) -> str:
        argv = [str(self._ssh), command]
        return subprocess.run(argv, capture_output=True, text=True, check=check).stdout.strip()

    def play(self, playbook: str, *options: str, ends: int = 0) -> int:
        """Run a playbook; return how many tasks have changed something."""
        (self._folder / "play.yml").write_text(playbook)
        (self._folder / "hosts").write_text(
            f"[web]\nvm ansible_ssh_executable={self._ssh} ansible_ssh_transfer_method=piped "
            "ansible_pipelining=true ansible_python_interpreter=/usr/bin/python3\n"
        )
        given = {
            **os.environ,
            "ANSIBLE_ROLES_PATH": str(ROLES),
            "ANSIBLE_SSH_ARGS": "",
            "ANSIBLE_LOCAL_TEMP": str(self._folder / "local"),
            "LC_ALL": "C.UTF-8",
        }
        argv = [str(ANSIBLE / "bin" / "ansible-playbook"), "-i", "hosts", *options, "play.yml"]
        ran = subprocess.run(
            argv, cwd=self._folder, env=given, capture_output=True, text=True, check=False
        )
        assert ran.returncode == ends, ran.stdout + ran.stderr
        changed = re.search(r"(?m)^vm +: .*changed=(\d+)", ran.stdout)
        assert changed, ran.stdout + ran.stderr
        return int(changed[1])

    @property
    def agent(self) -> str:
        """The process of the agent, "0" where none runs."""
        return self.run("systemctl show -P MainPID forewarn-agent")

    @property
    def traces(self) -> str:
        """What of the agent is on the machine."""
        places = (
            "/opt/forewarn /usr/bin/forewarn /usr/local/bin/forewarn /etc/forewarn "
            "/var/lib/forewarn-agent /var/cache/forewarn /etc/systemd/system/forewarn-agent.service"
        )
        return self.run(f"ls -d {places}", check=False)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The Debian package, the wheel and the one file."""
    (package,) = installed.once("deb", tmp_path_factory).glob("forewarn-agent_*.deb")
    (program,) = installed.once("onefile", tmp_path_factory).iterdir()
    wheel = installed.built(tmp_path_factory.mktemp("built"))
    return {"deb": package, "one file": program, "wheel": wheel}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    subprocess.run(["make", "-s", ".venv-ansible/.ansible"], cwd=ROOT, check=True)
    folder = tmp_path_factory.mktemp("machine")
    root = folder / "root"
    installed.debian(tmp_path_factory, root)
    inside = ["systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit"]
    needs = "apt-get update -qq; apt-get install -qq -y --no-install-recommends"
    needs += " python3-apt python3-venv"
    subprocess.run([*inside, "--pipe", "sh", "-ec", needs], check=True)
    # The machine has no network: what the wheel requires is beside it.
    requirements = ROOT / "requirements" / "agent.txt"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "-d", str(root / "wheels")]
    subprocess.run([*pip, "--require-hashes", "-r", requirements], check=True)
    (root / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    argv = [*inside, "--private-network", "--link-journal=no", "--console=pipe", "--boot"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            yield _booted(folder, process.pid)
        finally:
            process.terminate()  # which the Debian is told as a shutdown
            try:
                process.wait(patience.SECONDS)
            finally:
                process.kill()


def _booted(folder: Path, nspawn: int) -> Machine:
    children = Path(f"/proc/{nspawn}/task/{nspawn}/children")

    def leader() -> int:
        with contextlib.suppress(OSError):  # a child of its own that has just ended
            for child in map(int, children.read_text().split()):
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return child
        return 0

    until(leader)
    machine = Machine(folder, leader())
    states = {"running", "degraded"}
    until(
        lambda: machine.run("systemctl is-system-running", check=False) in states,
    )
    return machine


def playbook(source: Path, state: str = "present") -> str:
    """The guide's own playbook."""
    guides = f"files/forewarn-agent-{__version__}-linux-x86_64\n"
    assert guides in PLAYBOOK
    given = PLAYBOOK.replace(guides, f"{source}\n").replace("become: true", "gather_facts: false")
    return f"{given}      forewarn_agent_state: {state}\n"


def test_the_role_installs_changes_only_what_differs_and_removes(
    machine: Machine, sources: dict[str, Path]
) -> None:
    play = playbook(sources["one file"])
    assert machine.play(play, "--check", "--diff") > 0
    assert machine.traces == ""

    machine.play(play)
    assert machine.run("systemctl is-active forewarn-agent") == "active"
    assert machine.run("systemctl is-enabled forewarn-agent") == "enabled"
    assert "leave the pool" in machine.run("/usr/local/bin/forewarn agent check")
    agent = machine.agent
    assert machine.play(play) == 0
    assert machine.play(play, "--check") == 0
    assert machine.agent == agent

    other = play.replace("leave the pool", "another name")
    machine.play(other)
    assert machine.agent not in {agent, "0"}
    assert "another name" in machine.run("/usr/local/bin/forewarn agent check")

    agent = machine.agent
    machine.play(play.replace("Redeploy", "Rewind"), ends=2)
    assert "another name" in machine.run("/usr/local/bin/forewarn agent check")
    assert machine.agent == agent

    removed = playbook(sources["one file"], "absent")
    assert machine.play(removed, "--check") > 0
    assert machine.agent == agent
    assert machine.play(removed) > 0
    assert machine.traces == ""
    assert machine.play(removed) == 0


@pytest.mark.parametrize("kind", ["deb", "wheel"])
def test_the_role_takes_the_other_sources(
    kind: str, machine: Machine, sources: dict[str, Path]
) -> None:
    play = playbook(sources[kind])
    assert machine.play(play, "--check") > 0
    assert machine.traces == ""
    assert machine.play(play) > 0
    assert machine.agent != "0"
    assert "leave the pool" in machine.run("PATH=/usr/local/bin:$PATH forewarn agent check")
    agent = machine.agent
    assert machine.play(play) == 0
    assert machine.agent == agent
    machine.play(playbook(sources[kind], "absent"))
    assert machine.traces == ""


def test_the_linter_finds_nothing(machine: Machine) -> None:
    del machine  # which has installed it
    given = {**os.environ, "PATH": f"{ANSIBLE}/bin:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    argv = ["ansible-lint", "--offline", "--strict", "forewarn_agent"]
    ran = subprocess.run(argv, cwd=ROLES, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
