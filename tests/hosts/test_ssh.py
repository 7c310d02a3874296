"""With root: the guide's key, SSH settings and service settings as they stand, over a real sshd.

The service runs as the unit's user, and reaches each host by its name and in no other way.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import forked
from hosts import site, system_host
from hosts.guest import BRIDGED, Guest
from hosts.lab import Lab
from recipes import pages

PAGE = "libvirt"
SETTINGS = "/etc/ssh/ssh_config.d/forewarn.conf"
CREDENTIALS = Path("/run/credentials/forewarn.service")
NAMES = ("h1", "h2")


@pytest.fixture(scope="module")
def lab(as_root: None) -> Iterator[Lab]:
    """Two hosts that the page's commands have let the service's key in to."""
    with (
        tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as name,
        site.own_etc(Path(name)) as home,
    ):
        folder = Path(name)
        folder.chmod(0o711)
        (home / ".ssh").mkdir(mode=0o700)
        system_host.generate(home / ".ssh" / "id_ed25519")
        (home / ".ssh" / "config").write_text("StrictHostKeyChecking accept-new\n")
        made = Lab(folder, system_host.SshHost)
        try:
            with Path("/etc/hosts").open("a") as file:
                file.writelines(f"{host.address} {host.name}\n" for host in map(made.host, NAMES))
            prepare(home)
            yield made
        finally:
            made.close()


def prepare(home: Path) -> None:
    """Do as root what the page's section on the key says, in its order."""
    Path("/etc/forewarn").mkdir()
    for line in pages.block(PAGE, "console", "ssh-keygen").splitlines():
        command = line.removeprefix("# ")
        assert command != line
        as_operator(home, command)
    credential = pages.block(PAGE, "ini").partition("LoadCredential=")[2].strip()
    name, _, path = credential.partition(":")
    CREDENTIALS.mkdir(parents=True)
    (CREDENTIALS / name).write_bytes(Path(path).read_bytes())  # as systemd hands it over
    for each in (CREDENTIALS, CREDENTIALS / name):
        os.chown(each, site.USER_ID, site.USER_ID)
        each.chmod(0o500 if each.is_dir() else 0o400)
    site.write(SETTINGS, pages.block(PAGE, "ssh-config"))


def as_operator(home: Path, command: str) -> str:
    own = {"PATH": site.PATH, "HOME": str(home)}
    ran = forked.completed(["sh", "-ec", command], env=own, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    return ran.stdout


def as_the_unit(*command: str) -> subprocess.CompletedProcess[str]:
    return forked.completed([*site.as_the_unit(), *command], stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("name", NAMES)
def test_the_hosts_keys_that_were_saved_are_those_that_the_hosts_have(lab: Lab, name: str) -> None:
    home = Path("~root").expanduser()
    own = as_operator(home, f"ssh root@{name} ssh-keygen -lf /etc/ssh/{system_host.KEY}.pub")
    saved = as_operator(home, f"ssh-keygen -lF {name} -f /etc/ssh/ssh_known_hosts")
    assert own.split()[1] in saved


@pytest.mark.parametrize("name", NAMES)
def test_ssh_lets_the_units_user_in_by_the_key_that_systemd_hands_over(lab: Lab, name: str) -> None:
    assert as_the_unit("cat", "/etc/forewarn/ssh_key").returncode != 0
    asked = as_the_unit("ssh", f"root@{name}", "cat", "/proc/sys/kernel/random/boot_id")
    assert asked.stdout.strip() == lab.hosts[name].boot_id, asked.stderr


def test_ssh_refuses_a_host_whose_key_was_not_saved_and_asks_nobody(lab: Lab) -> None:
    asked = as_the_unit("ssh", f"root@{lab.hosts['h1'].address}", "true")
    assert asked.returncode != 0
    assert "verification failed" in asked.stderr


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """A guest on each host; the service has the page's settings, and nothing else."""
    listener, _, text = pages.block(PAGE, "toml").partition("[connector]")
    assert listener
    lab.serve(f"[connector]{text}", as_the_unit=True)
    places = dict(zip(("web-0", "web-1"), NAMES, strict=True))
    made = lab.start(places, approve=True, wire=BRIDGED)
    lab.fleet(made)
    return made


def test_hosts_are_patched_over_ssh_by_the_pages_settings(lab: Lab, guests: list[Guest]) -> None:
    before = {name: (host.boot_id, host.reboots) for name, host in lab.hosts.items()}
    listed = lab.forewarn("host", "list")
    assert all(name in listed for name in NAMES)
    lab.forewarn("host", "drain", *NAMES, "--reboot", "--wait")
    for name, host in lab.hosts.items():
        assert (host.boot_id != before[name][0], host.reboots - before[name][1]) == (True, 1)
    assert [guest.host() for guest in guests] == [*NAMES]
    assert [len(guest.boots) for guest in guests] == [1, 1]
    assert {each["status"] for each in lab.operations()} == {"Completed"}
