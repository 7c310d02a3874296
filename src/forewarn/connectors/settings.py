"""The settings of the connectors `command` and `libvirt`, apart from them.

The command line reads the settings to find the operators' socket, also where the server extra,
which the connectors need, is not installed.
"""

import re
import urllib.parse
from typing import Annotated, Final, Literal

import msgspec

from forewarn.settings import FieldError, FileName

Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Limit = Annotated[float, msgspec.Meta(ge=1, le=7 * 24 * 3600)]
Argument = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]

URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://?.*", re.DOTALL)
"""The URIs that libvirt can open: a driver, perhaps a transport, and a place."""

MIGRATE_URI: Final = re.compile(r"(?:tcp|rdma|unix):\S+")
"""The address at which a hypervisor listens for machines that come in."""

MAX_HOSTS: Final = 1000
"""Each program looks at every host: more of them are another service's."""

BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"

SSH_OPTIONS: Final = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""Options for ssh without a person to type a password."""


class CommandConnectorSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The operator's program, and the limits of its runs."""

    program: tuple[str, ...] = ()
    """The program and its arguments, as `["/usr/local/bin/maintain", "--quiet"]`: a full path, or a
    bare name that PATH finds; no shell reads it. Empty by default: nobody can choose it but you."""
    per: Literal["machine", "operation"] = "machine"
    """`machine`: one run for each machine of an operation, all at once as far as `at_once` allows.
    `operation`: one run for all of them. By default each machine: the simplest programs take one
    name."""
    time_limit_seconds: Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)] = 1800.0
    """The time limit of a run. After that its process group gets SIGTERM, and it has failed. By
    default half an hour: longer than a large machine's live migration, and not for ever."""
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    """The time between that SIGTERM and SIGKILL: 10 s to put things in order."""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    """The most runs under way at once; the others wait in the order in which they came. 16 spare
    the hosts; runs that a restart finds under way are not counted."""
    check_command: tuple[str, ...] = ()
    """Asked where nobody knows whether a run did its work, with the same input and variables: exit
    status 0 says done, 1 not done, any other that it cannot tell either. Empty, the default, is
    none: `on_unknown` decides then."""
    state: FileName = ""
    """The folder for the runs' files, on a local disk. `""` is `commands` beside the database."""


class LibvirtHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host, and its addresses and commands."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """Its name in the fleet."""
    uri: str
    """The URI that libvirt opens, as `qemu+ssh://h1/system`."""
    migrate_uri: str = ""
    """The URI at which its hypervisor takes machines in, as `tcp://10.98.0.11`. `""`: libvirt asks
    the host for its own name."""
    targets: bool = True
    """True if machines may move there."""
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The memory that its machines may have altogether, in MiB. 0 is all that it has."""
    reboot: tuple[Argument, ...] = ()
    """The command that reboots it, as `["ssh", "h1", "systemctl", "reboot"]`, run where the service
    runs, without a shell. Empty: it is not rebooted from here."""
    boot_id: tuple[Argument, ...] = ()
    """The command that prints another text after each boot, which proves a reboot. Empty: the
    kernel's boot id, over SSH for a `qemu+ssh` URI, or from this machine for a URI without a
    host."""

    @property
    def boot_id_command(self) -> tuple[str, ...]:
        """The command that prints the boot id; () where there is none."""
        if self.boot_id:
            return self.boot_id
        parsed = urllib.parse.urlsplit(self.uri)
        if not parsed.hostname:
            return ("cat", BOOT_ID_FILE)
        if not parsed.scheme.endswith("+ssh"):
            return ()
        user = f"{parsed.username}@" if parsed.username else ""
        port = ("-p", str(parsed.port)) if parsed.port else ()
        return ("ssh", *SSH_OPTIONS, *port, f"{user}{parsed.hostname}", "cat", BOOT_ID_FILE)

    def __post_init__(self) -> None:
        """Refuse URIs that libvirt could not open."""
        if not self.name.isprintable():
            raise FieldError("name", "contains a character that cannot be printed")
        try:
            parsed = urllib.parse.urlsplit(self.uri)
            parsed.port  # noqa: B018 - raises where it is not a number
        except ValueError as error:
            raise FieldError("uri", f"invalid URI {self.uri!r}: {error}") from error
        if not URI.fullmatch(self.uri) or "\0" in self.uri:
            message = f"invalid URI {self.uri!r}: expected one such as 'qemu+ssh://h1/system'"
            raise FieldError("uri", message)
        if self.migrate_uri and not MIGRATE_URI.fullmatch(self.migrate_uri):
            message = f"invalid URI {self.migrate_uri!r}: expected one such as 'tcp://10.98.0.11'"
            raise FieldError("migrate_uri", message)


class LibvirtMigration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way in which machines migrate."""

    by: Literal["direct", "p2p"] = "direct"
    """`direct`: the service's machine talks to both hosts, which need no credentials for each
    other, and a migration ends with the program that runs it. `p2p`: the source's libvirt talks to
    the target's URI by itself."""
    disks: Literal["shared", "copy"] = "shared"
    """`copy` copies the disks with the machine, onto images that exist on the target."""
    unsafe: bool = False
    """True to migrate a disk whose cache mode could lose writes, too."""
    auto_converge: bool = True
    """True to slow down a machine that changes its memory faster than it can be copied."""
    bandwidth_mib: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """The most MiB a second that one migration takes; 0 is no limit."""
    tls: bool = False
    """True to encrypt the traffic between the hypervisors."""


class LibvirtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts, and the limits of maintenance on them."""

    python: str = ""
    """The Python with the module `libvirt`: `"/usr/bin/python3"` with Debian's `python3-libvirt`.
    `""` is the service's own, with Forewarn's extra `libvirt`."""
    host: Annotated[tuple[LibvirtHost, ...], msgspec.Meta(max_length=MAX_HOSTS)] = ()
    """All hosts on which a machine of the fleet may be."""
    at_once: Count = 8
    """The most machines under work at once; the others wait in the order in which they came."""
    at_once_per_host: Count = 2
    """The most of them on one host, or moving to it: two migrations fill a link."""
    time_limit_seconds: Limit = 3600.0
    """The time limit of one machine, such as a large one's migration. Then the migration is
    cancelled, the machine is left running where it is, and the operation has failed."""
    shutdown_seconds: Limit = 120.0
    """The time for a guest to shut down, for a Reboot or a cold move."""
    force: bool = True
    """True to power off a guest that has not shut down by then. Otherwise the operation has failed,
    and the guest runs on."""
    retry_seconds: Limit = 300.0
    """The time for a host to answer again that stopped answering after something was begun. After
    that the outcome is unknown, and `on_unknown` decides."""
    freeze: Literal["suspend", "migrate"] = "suspend"
    """The work of a Freeze: pause the machine, or move it. One that was announced as a live
    migration always moves it."""
    freeze_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    """The pause of a Freeze; shorter where a shorter interruption was announced."""
    redeploy: Literal["live", "live-or-cold", "cold"] = "live"
    """The way in which a Redeploy moves a machine: live, which keeps its memory; live, or by a
    shutdown where libvirt refuses that; or by a shutdown."""
    migration: LibvirtMigration = LibvirtMigration()
    delete_disks: bool = False
    """True to delete the machine's disks from their storage pools, too, at a Preempt or Terminate.
    The definition, its saved state and its firmware variables are always removed."""

    def __post_init__(self) -> None:
        """Refuse two hosts of one name, or with one URI."""
        for field in ("name", "uri"):
            seen: set[str] = set()
            for host in self.host:
                value = getattr(host, field)
                if value in seen:
                    raise FieldError("host", f"two hosts have the {field} {value!r}")
                seen.add(value)
