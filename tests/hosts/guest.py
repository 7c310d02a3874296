"""One guest: its definition, and what it wrote of its polls on its serial console."""

import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from hosts.host import IDS, Host, until
from trace_judge import Trace

NETWORK = "10.99.0"
LINE = re.compile(r"POLL (\S+) (\d+) (.*)")
UP = re.compile(r"UP (\S+)")
OFF = re.compile(r"\bOFF\b")
REFUSED = re.compile(r"server returned|refused")
"""In the error of a poll: an answer that is not the document, or a port that nobody listens on."""
KERNEL = (
    "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests "
    "clocksource=acpi_pm"  # a busy host makes an emulated processor's own clock run too fast
)
TAP = "<target dev='{name}' managed='no'/>"
BRIDGED = "<source bridge='bridge'/>"
FILTER = "<filterref filter='clean-traffic'><parameter name='IP' value='{address}'/></filterref>"
"""What holds a guest to its address; only a libvirtd of root can do it."""
FILTERED = BRIDGED + FILTER
ODD_BYTES = 8192
"""What makes a guest's memory no multiple of 64 pages.

QEMU before 9.0 loses writes of an emulated guest in a live migration: the quick way to read the
dirty bitmap, 64 pages at a time, does not tell the processor's TLB (its commit "physmem: Fix
migration dirty bitmap coherency with TCG memory access"). It is not taken for such a block.
"""
DOMAIN = Path(__file__).with_name("domain.xml").read_text()


@dataclass(frozen=True)
class Poll:
    """One poll, as the guest wrote it."""

    at: float
    """When its line was read, by this process's monotonic clock: at most 50 ms late."""
    boot: str
    number: int
    """From 1 in each boot."""
    document: Mapping[str, Any] | None
    """What it read; None where the poll failed."""
    error: str = ""

    @property
    def refused(self) -> bool:
        """True where the endpoint refused it; a poll that fails otherwise was lost on its way."""
        return REFUSED.search(self.error) is not None

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that it read; none where the poll failed."""
        return list(self.document["Events"]) if self.document else []


class Guest:
    """A guest, defined on one host and free to move to the others.

    It polls once a second. Its polls are what every promise is judged by.

    Args:
        folder: Of the lab: its console is a file there.
        hosts: All hosts, by name: it is looked for on all of them.
        name: Its domain's, and its machine's.
        number: Which of the lab's guests it is: its addresses are made of it.
        image: The kernel and the initramfs.
        approve: Approve each event that it reads as Scheduled.
        button: Turn off when the power button is pressed.
        route: What it reaches by its router.
        wire: What its interface is tied to: TAP, or with root BRIDGED or FILTERED.
        network: The first three numbers of its address; its router has the first address.
        takes: An address that it uses in place of its own.
        memory_mib: 64 did not boot.
        devices: XML of more devices.
        arguments: More words for the kernel's command line.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Mapping[str, Host],
        name: str,
        number: int,
        image: tuple[Path, Path],
        *,
        approve: bool = False,
        button: bool = True,
        route: str = "default",
        wire: str = TAP,
        network: str = NETWORK,
        takes: str = "",
        memory_mib: int = 96,
        devices: str = "",
        arguments: str = "",
    ) -> None:
        self.name = name
        self.hosts = hosts
        self.address = f"{network}.{10 + number}"
        self.mac = f"52:54:00:99:00:{10 + number:02x}"
        self.vm_id = str(uuid.uuid5(IDS, name))
        self.console = folder / f"{name}.console"
        self.console.write_bytes(b"")
        self.polls: list[Poll] = []
        """All of them, of all its boots, in order."""
        self.presses: list[float] = []
        """When it heeded its power button, and went down."""
        self._rest = ""
        self._read = 0
        self.boots: list[str] = []
        """The ids of its boots, in order: one of them means that it was never restarted."""
        words = {
            "name": name,
            "address": takes or self.address,
            "router": f"{network}.1",
            "route": route,
            "approve": "yes" if approve else "no",
            "button": "heed" if button else "ignored",
        }
        line = " ".join([KERNEL, *(f"fw.{word}={value}" for word, value in words.items())])
        self.xml = DOMAIN.format(
            name=name,
            vm_id=self.vm_id,
            memory_mib=memory_mib,
            memory_bytes=memory_mib * 2**20 + ODD_BYTES,
            kernel=image[0],
            initramfs=image[1],
            arguments=f"{line} {arguments}".strip(),
            kind="ethernet" if wire == TAP else "bridge",
            wire=wire.format(name=name, address=self.address),
            mac=self.mac,
            console=self.console,
            devices=devices,
        )

    def define(self, host: str) -> None:
        """Define it on a host; it is off."""
        path = self.console.with_suffix(".xml")
        path.write_text(self.xml)
        self.hosts[host].virsh("define", str(path))

    def start(self, host: str) -> None:
        """Define it on a host and start it; return before it has booted."""
        self.define(host)
        self.hosts[host].virsh("start", self.name)

    def destroy(self) -> None:
        """Turn it off wherever it runs, and undefine it everywhere."""
        for host in self.hosts.values():
            if self.name in host.running():
                host.virsh("destroy", self.name)
            if self.name in host.defined():
                host.virsh("undefine", self.name, "--managed-save", "--snapshots-metadata")

    def host(self) -> str:
        """Return the name of the host on which it is active; "" where on none.

        Raises:
            AssertionError: It is active on two hosts, and no migration explains it.
        """
        found = self.active_on()
        assert len(found) <= 1, f"{self.name} is active on {found}"
        return found[0] if found else ""

    def active_on(self) -> list[str]:
        """Return the names of all hosts on which it is active: two of them in a migration."""
        return [name for name, host in self.hosts.items() if self.name in host.running()]

    def assert_unharmed(self, host: str) -> None:
        """Refuse it off, paused, doubled, on another host, or defined where it is not."""
        assert self.active_on() == [host]
        assert self.state() == "running"
        assert [name for name, each in self.hosts.items() if self.name in each.defined()] == [host]
        self.wait_for_polls()

    def state(self) -> str:
        """Return its state where it is active, as virsh has it: running, paused, ..."""
        host = self.host()
        return self.hosts[host].virsh("domstate", self.name) if host else "off"

    def migrate(self, to: str) -> None:
        """Move it live, as `virsh migrate` does; return when it has moved.

        Both hosts see the same files, which libvirt cannot know: it takes a disk for unsafe.
        """
        how = ("--live", "--persistent", "--undefinesource", "--unsafe")
        self.hosts[self.host()].virsh("migrate", *how, self.name, self.hosts[to].uri)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that it read last."""
        return next(poll.events for poll in reversed(self.polls) if not poll.error)

    def not_before(self) -> datetime:
        """Return the NotBefore that it reads, once it reads of an event."""
        until(self.events, self.said)
        return parsedate_to_datetime(self.events()[0]["NotBefore"])

    def complaints(self) -> list[str]:
        """Return what no guest may read: a number that goes back, or one of two contents."""
        trace = Trace()
        for poll in self.polls:
            if document := poll.document:
                trace.read(self.name, "", document["DocumentIncarnation"], document["Events"])
        return trace.complaints

    def failed_polls(self, since: float = 0) -> list[Poll]:
        """Return its polls that failed, from a time on."""
        return [poll for poll in self.polls if poll.error and poll.at >= since]

    def refused_polls(self, since: float = 0) -> list[Poll]:
        """Return its polls that the endpoint refused, from a time on.

        An emulated guest on a busy machine loses a poll now and then, and that is nobody's fault.
        """
        return [poll for poll in self.failed_polls(since) if poll.refused]

    def wait_for_polls(self, count: int = 1, since: float | None = None) -> None:
        """Wait until it has polled well so many times, from now on or from a time on."""
        start = time.monotonic() if since is None else since
        until(
            lambda: sum(not each.error and each.at >= start for each in self.polls) >= count,
            lambda: (self.name, "does not poll", self.said()[-3000:]),
        )

    def wait_until_up(self) -> None:
        """Wait until it has polled in its present boot, well or not."""
        until(
            lambda: self.polls and self.polls[-1].boot == self.boots[-1],
            lambda: (self.name, "does not boot", self.said()[-3000:]),
        )

    def wait_for_boots(self, count: int) -> None:
        """Wait until it has booted so often in all, and polled well in the last boot."""
        until(
            lambda: (
                len(self.boots) >= count
                and any(p.boot == self.boots[count - 1] and not p.error for p in self.polls)
            ),
            lambda: (self.name, self.boots, self.said()[-3000:]),
        )

    def said(self) -> str:
        """Return all that its console has."""
        return self.console.read_text(errors="replace")

    def read(self) -> None:
        """Take up what its console has got since; the lab's thread does it all the time."""
        with self.console.open("rb") as file:
            file.seek(self._read)
            came = file.read()
        if not came:
            return
        now = time.monotonic()
        self._read += len(came)
        *lines, self._rest = (self._rest + came.decode(errors="replace")).split("\n")
        for line in lines:
            if found := LINE.search(line):
                self.polls.append(_poll(now, *found.groups()))
            elif (found := UP.search(line)) and found[1] not in self.boots:
                self.boots.append(found[1])
            elif OFF.search(line):
                self.presses.append(now)


def _poll(at: float, boot: str, number: str, text: str) -> Poll:
    try:
        return Poll(at, boot, int(number), json.loads(text))
    except ValueError:
        return Poll(at, boot, int(number), None, text.strip())
