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
    """The program and its arguments, such as `["/usr/local/bin/maintain", "--quiet"]`: a full path,
    or a bare name that PATH finds; no shell reads it. Required with `kind = "command"`."""
    per: Literal["machine", "operation"] = "machine"
    """`"machine"`: one run for each machine of an operation, at the same time as far as `at_once`
    allows. `"operation"`: one run for all of them. By default each machine: the simplest programs
    take one name."""
    time_limit_seconds: Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)] = 1800.0
    """The time limit of a run. After that its process group gets SIGTERM, and the run has failed.
    By default half an hour: longer than the live migration of a large machine."""
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    """The time from that SIGTERM to SIGKILL."""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    """Runs at once; the others wait in order. Each replica counts for itself. Runs that a restart
    finds under way are not counted."""
    check_command: tuple[str, ...] = ()
    """A program that is run when nobody knows whether a task was carried out ([its
    contract](../guides/connectors.md#after-a-restart)). Empty, the default: `on_unknown`
    decides."""
    state: FileName = ""
    """The folder for the runs' files, on a local disk. `""` is `commands` beside the database."""


class LibvirtHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host, and its addresses and commands."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """Its name in the fleet."""
    uri: str
    """Its libvirt URI, such as `qemu+ssh://h1/system`."""
    migrate_uri: str = ""
    """The address to which machines migrate, such as `tcp://10.98.0.11`. `""`: libvirt asks the
    host for its name."""
    targets: bool = True
    """`false` keeps machines from moving there."""
    memory_mib: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The memory of all its machines together, in MiB, at most. 0: all of the host's."""
    reboot: tuple[Argument, ...] = ()
    """The command that reboots it, such as `["ssh", "h1", "systemctl", "reboot"]`, run on the
    service's machine, without a shell. Empty: the service cannot reboot it."""
    boot_id: tuple[Argument, ...] = ()
    """A command that prints another text after each boot. Empty: the kernel's boot id, over SSH for
    a `qemu+ssh` URI, or from this machine for a URI without a host."""

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
    """`"direct"`: the service's machine connects to both hosts, which need no credentials for each
    other; a migration ends if the program that runs it ends. `"p2p"`: the source's libvirt connects
    to the target's URI by itself."""
    disks: Literal["shared", "copy"] = "shared"
    """`"shared"`: both hosts reach the disks. `"copy"` copies the disks with the machine, onto
    images that exist on the target."""
    unsafe: bool = False
    """`true`: migrate a disk even if its cache mode could lose writes."""
    auto_converge: bool = True
    """`true`: slow a machine down that changes its memory faster than it can be copied."""
    bandwidth_mib: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """The most MiB a second that one migration takes; 0 is no limit."""
    tls: bool = False
    """`true`: the hypervisors encrypt their connection."""


class LibvirtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts, and the limits of maintenance on them."""

    python: str = ""
    """The Python with the module `libvirt`: `"/usr/bin/python3"` with Debian's `python3-libvirt`.
    `""` is the service's own, with Forewarn's extra `libvirt`."""
    host: Annotated[tuple[LibvirtHost, ...], msgspec.Meta(max_length=MAX_HOSTS)] = ()
    """All hosts on which a machine of the fleet may be."""
    at_once: Count = 8
    """Tasks at once; the others wait in order."""
    at_once_per_host: Count = 2
    """Tasks at once that concern one host, as source or target. Two migrations fill a link."""
    time_limit_seconds: Limit = 3600.0
    """The time limit of a task. Then a migration is cancelled, the machine runs on where it is, and
    the operation has failed. A machine that is off while its host reboots waits for as long as that
    takes."""
    shutdown_seconds: Limit = 120.0
    """The time in which a guest must shut down for a Reboot or a cold move."""
    force: bool = True
    """`true`: power a guest off that has not shut down by then. With `false` the operation has
    failed, and the guest runs on."""
    retry_seconds: Limit = 300.0
    """The time for retries if a host stops answering during a task. After that the outcome is
    unknown, and `on_unknown` decides."""
    freeze: Literal["suspend", "migrate"] = "suspend"
    """`"suspend"`: a Freeze pauses the machine; `"migrate"` moves it. A Freeze that was announced
    as a live migration always moves it."""
    freeze_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    """The pause of a Freeze; less if a shorter interruption was announced."""
    redeploy: Literal["live", "live-or-cold", "cold"] = "live"
    """A Redeploy moves a machine `"live"`, which keeps its memory; `"live-or-cold"`, by a shutdown
    if libvirt refuses to move it live; or `"cold"`, by a shutdown."""
    migration: LibvirtMigration = LibvirtMigration()
    delete_disks: bool = False
    """`true`: a Preempt or Terminate deletes the machine's disks from their storage pools too. The
    definition, its saved state and its firmware variables are always removed."""

    def __post_init__(self) -> None:
        """Refuse two hosts of one name, or with one URI."""
        for field in ("name", "uri"):
            seen: set[str] = set()
            for host in self.host:
                value = getattr(host, field)
                if value in seen:
                    raise FieldError("host", f"two hosts have the {field} {value!r}")
                seen.add(value)
