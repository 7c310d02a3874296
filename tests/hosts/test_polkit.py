"""With root: polkit lets the unit's user manage libvirt by the rule of the guide, and nobody else.

A libvirtd of root, polkitd and the bus between them are all in this file's namespaces.
"""

import contextlib
import functools
import grp
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.running import Running
from hosts import lab, site
from hosts.host import until
from recipes import pages

RULE = "/etc/polkit-1/rules.d/60-forewarn.rules"
LOCAL = "qemu:///system"
LIST = ("virsh", "--connect", LOCAL, "list")
NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
AGENT = "no polkit agent"
"""What polkit says where it would ask somebody for root's password."""
RUN = Path("/run")
POLKITD = "/usr/lib/polkit-1/polkitd"
SETTINGS = f"""
[connector]
kind = "libvirt"
[connector.libvirt]
python = "{lab.PYTHON}"
[[connector.libvirt.host]]
name = "h1"
uri = "{LOCAL}"
reboot = ["true"]
"""


@contextlib.contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def folder(as_root: None) -> Iterator[Path]:
    """A folder beside which libvirtd, polkitd and their bus run, as a distribution sets them up."""
    with (
        tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as name,
        site.own_etc(Path(name)),
    ):
        made = Path(name)
        made.chmod(0o711)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", RUN], check=True)
        (RUN / "dbus").mkdir()
        for kept in ("/var/lib/libvirt", "/var/cache/libvirt"):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", kept], check=True)
        with Path("/etc/libvirt/libvirtd.conf").open("a") as file:
            file.write('auth_unix_rw = "polkit"\nunix_sock_rw_perms = "0777"\n')
        with Path("/etc/libvirt/qemu.conf").open("a") as file:
            file.write('security_driver = "none"\ncgroup_controllers = []\n')
        Path(RULE).unlink(missing_ok=True)
        with contextlib.ExitStack() as daemons:
            bus = ("dbus-daemon", "--system", "--nofork", "--nopidfile")
            daemons.enter_context(running(made / "bus.log", *bus))
            until((RUN / "dbus" / "system_bus_socket").exists)
            daemons.enter_context(running(made / "polkitd.log", POLKITD, "--no-debug"))
            daemons.enter_context(running(made / "libvirtd.log", "libvirtd"))
            until(lambda: not called(), (made / "libvirtd.log").read_text)
            until(lambda: AGENT in called(*NOBODY), (made / "polkitd.log").read_text)
            yield made


def called(*by: str) -> str:
    """Ask libvirt for its guests, with the right to change them; return why it refused."""
    asked = subprocess.run([*by, *LIST], capture_output=True, text=True, check=False)
    return asked.stderr if asked.returncode else ""


def test_polkit_lets_the_units_user_manage_by_the_rule_and_nobody_else(folder: Path) -> None:
    group = str(grp.getgrnam("libvirt").gr_gid)
    assert AGENT in called(*site.as_the_unit())
    assert AGENT in called(*site.as_the_unit(groups=group))
    site.write(RULE, pages.block("libvirt", "js"))
    until(lambda: not called(*site.as_the_unit()), (folder / "polkitd.log").read_text)
    assert AGENT in called(*NOBODY)


def test_the_service_reaches_its_own_host_as_that_user(folder: Path) -> None:
    site.write(RULE, pages.block("libvirt", "js"))
    where = folder / "service"
    where.mkdir()
    service = Running(where)
    with service.settings.open("a") as file:
        file.write(SETTINGS)
    for path in (where, *where.iterdir()):
        os.chown(path, site.USER_ID, site.USER_ID)
    service.start(*site.as_the_unit(site.READS_ALL))
    try:
        asked = functools.partial(service.operator.get, "/v1/hosts/h1")
        until(lambda: asked()["host"]["answers"], service.log.read_text)
        assert asked()["host"]["status"] == "up"
    finally:
        service.stop()
