"""The lab: a network with hosts on it, guests and a relay on each, and the service beside them."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import forked
from authority import Authority
from end_to_end.running import Running
from forewarn.cli import main
from hosts import site
from hosts.guest import Guest
from hosts.host import ENDPOINT, HERE, ROUTER, Host, until
from machines import image
from relays import process

PROGRAMS = (
    *("libvirtd", "virsh", "qemu-system-x86_64", "busybox", "mkfs.ext4", "ip", "unshare"),
    *("nsenter", "openssl"),
)
PACKAGES = (
    "libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 "
    "python3-libvirt busybox-static e2fsprogs iproute2 openssl"
)
PROGRAMS_OF_ROOT = ("nft", "nginx", "dnsmasq", "sshd", "setpriv", "dbus-daemon", "polkitd", "curl")
PACKAGES_OF_ROOT = "nftables nginx-light dnsmasq-base openssh-server dbus polkitd curl"
PYTHON = "/usr/bin/python3"
"""The Python that has Debian's python3-libvirt; ours need not."""
MODULES = ("virtio_pci", "virtio_net", "virtio_blk", "button", "evdev", "crc32c_generic", "ext4")
"""Of a guest's kernel. Debian's smallest one boots quickest: linux-image-cloud-amd64."""
BUTTON = "#!/bin/sh\necho OFF >/dev/console\nsync\nexec poweroff -f\n"
"""What acpid runs in a guest when its power button is pressed."""
NETWORK = (
    "mount -t tmpfs tmpfs /run",
    "mkdir /run/netns",
    "ip link set lo up",
    f"ip address add {ENDPOINT}/32 dev lo",
    "ip link add switch type bridge",
    "ip address add {address}/24 dev switch",
    "ip link set switch up",
)
"""What makes the network between the hosts, in this process's namespace, by its address there."""
SERVICE = "10.99.0.100"
"""Where the service is for hosts with relays; without, it is the guests' router."""
WATCH_SECONDS = 0.02
ENDED_SECONDS = 300
"""Of maintenance that guests approve: one reboot takes 10 s on a quiet machine."""
OVER = {"Completed", "Failed", "Canceled"}
PLANE = f"{SERVICE}:8173"
"""Where relays ask the service."""
RELAYS = """
[relay]
listen = "{plane}"
tls_certificate = "{folder}/ca/relay.pem"
tls_key = "{folder}/ca/relay.pem"
"""
SIMULATED = "[connector.simulated]\nreboot_seconds = 0.1\nfreeze_seconds = 0.1\n"


@contextlib.contextmanager
def made(*hosts: str, kind: type[Host] = Host, has_relays: bool = True) -> "Iterator[Lab]":
    """Make a lab with these hosts; the rest is as for `Lab`."""
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder), kind, has_relays=has_relays)
        try:
            for name in hosts:
                lab.host(name)
            yield lab
        finally:
            lab.close()


def missing() -> str:
    """Say what is missing for a lab; empty if nothing is."""
    if absent := _absent(PROGRAMS):
        return f"{absent} not found: install {PACKAGES}"
    if forked.completed([PYTHON, "-c", "import libvirt"]).returncode:
        return f"{PYTHON} cannot import libvirt: install python3-libvirt"
    return image.missing_kernel("linux-image-cloud-amd64")


def missing_of_root() -> str:
    """Say what else is missing for the tests that take root; empty if nothing is."""
    absent = _absent(PROGRAMS_OF_ROOT)
    return f"{absent} not found: install {PACKAGES_OF_ROOT}" if absent else ""


def _absent(programs: Iterable[str]) -> str:
    path = f"{image.search_path()}:/usr/lib/polkit-1"
    return ", ".join(name for name in programs if shutil.which(name, path=path) is None)


class Lab:
    """Two hosts on one network, the service beside them, and a relay on each that answers guests.

    Args:
        folder: Its own; the path is short, for sockets.
        kind: Of its hosts.
        has_relays: Whether hosts have relays; else guests reach the service itself.
    """

    def __init__(self, folder: Path, kind: type[Host] = Host, *, has_relays: bool = True) -> None:
        self._kind = kind
        self._has_relays = has_relays
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self.guests: dict[str, Guest] = {}
        self._service: Running | None = None
        self._numbers: dict[str, int] = {}
        """Of every guest that there was: its addresses and taps stay."""
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="lab", daemon=True)
        kernel = image.kernels()[-1]
        files = {"init": (HERE / "init.sh").read_text(), "etc/acpi/PWRF/00000080": BUTTON}
        self._image = kernel, image.initramfs(folder, kernel, MODULES, files)
        _network(SERVICE if has_relays else ROUTER)
        if has_relays:
            Authority(folder / "ca").sign("relay", f"IP:{SERVICE}")
        self._watcher.start()

    @property
    def service(self) -> Running:
        """The service that `serve` has started."""
        assert self._service is not None
        return self._service

    def host(self, name: str) -> Host:
        """Return a host by its name; make and boot it if there is none."""
        if name not in self.hosts:
            address = f"10.99.0.{101 + len(self.hosts)}"
            made = self._kind(self.folder, name, address, has_relay=self._has_relays)
            for guest in self._numbers:
                made.add_tap(guest)
            made.power_on()
            self.hosts[name] = made
        return self.hosts[name]

    def guest(self, name: str, **terms: Any) -> Guest:
        """Make a guest that no host has yet; `terms` are those of `Guest`."""
        assert name not in self.guests, f"{name} is there already"
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers) + 1
            for host in self.hosts.values():
                host.add_tap(name)
        number = self._numbers[name]
        made = Guest(self.folder, self.hosts, name, number, self._image, **terms)
        self.guests[name] = made
        return made

    def start(self, guests: Mapping[str, str], **terms: Any) -> list[Guest]:
        """Start a guest for each name, on the host given with it; wait until all are up."""
        made = [self.guest(name, **terms) for name in guests]
        for guest in made:
            guest.start(guests[guest.name])
        for guest in made:
            guest.wait_until_up()
        return made

    def serve(self, settings: str = SIMULATED, *, as_the_unit: bool = False) -> Running:
        """Run the service with these settings beside its sockets and store.

        Args:
            settings: From `[connector]` on.
            as_the_unit: As its user and with its capabilities, which takes root.
        """
        assert self._service is None, "it runs: stop it first"
        folder = self.folder / "service"
        folder.mkdir(exist_ok=True)
        running = Running(folder)
        running.settings.write_text(
            f'[store]\npath = "forewarn.db"\n'
            f'[[guest.listener]]\naddress = "{ENDPOINT}"\nport = 80\n{settings}\n'
            f"{RELAYS.format(plane=PLANE, folder=self.folder) if self._has_relays else ''}"
        )
        if as_the_unit:
            for path in (folder, *folder.iterdir()):
                os.chown(path, site.USER_ID, site.USER_ID)
        running.start(*(site.as_the_unit(site.READS_ALL) if as_the_unit else ()))
        self._service = running
        os.environ["FOREWARN_CONFIG"] = str(running.settings)
        os.environ.pop("FOREWARN_OPERATOR", None)
        if self._has_relays:
            for host in self.hosts.values():
                self._relay(host)
        return running

    def _relay(self, host: Host) -> None:
        """Let a host have its relay."""
        state = host.folder / "relay"
        state.mkdir(mode=0o700)
        token = state / "token"
        self.forewarn("relay", "token", host.name, "--output", str(token))
        host.relay = state / "relay.toml"
        host.relay.write_text(
            process.settings(state, f"https://{PLANE}", trusts=self.folder / "ca" / "ca.pem")
        )
        host.start_relay()

    def fleet(self, guests: Sequence[Guest], kind: str = "availability_set", **more: str) -> None:
        """Tell the service of guests, and wait until each has polled.

        They are one availability set, with an update domain for each guest, or a `scale_set` of low
        priority, or each a `machine` that is alone; `more` is of each.
        """
        own = {"availability_set": ("update_domain", "name"), "scale_set": ("index",)}
        machines: list[dict[str, Any]] = []
        for number, guest in enumerate(guests):
            numbers = {"update_domain": number, "index": number, "name": guest.name}
            named = {name: numbers[name] for name in own.get(kind, ("name",))}
            place = {"host": guest.host(), "address": guest.address, "vm_id": guest.vm_id}
            machines.append({**named, **place, **more})
        told = {
            "availability_set": [
                {"name": "web", "update_domains": len(machines), "machines": machines}
            ],
            "scale_set": [{"name": "batch", "priority": "low", "machines": machines}],
            "machine": machines,
        }
        path = self.folder / "fleet.json"
        path.write_text(json.dumps({kind: told[kind]}))
        self.forewarn("fleet", "apply", str(path))
        for guest in guests:
            guest.wait_for_polls()

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Run one command line against the service; return its exit status and what it printed.

        It runs in this process: one of its own takes half a second of processor to start.
        """
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            status = main.execute(arguments)
        return status, out.getvalue(), err.getvalue()

    def forewarn(self, *arguments: str) -> str:
        """Run one command line against the service, which is to succeed; return its output."""
        status, out, err = self.call(*arguments)
        assert status == 0, (arguments, status, out, err)
        return out

    def libvirt(self, more: str = "", **hosts: str) -> str:
        """Return the settings of the libvirt connector with every host of the lab.

        Args:
            more: More lines of `[connector.libvirt]`.
            hosts: More lines of a host's table, by its name.
        """
        lines = [f'[connector]\nkind = "libvirt"\n[connector.libvirt]\npython = "{PYTHON}"', more]
        for host in self.hosts.values():
            lines += [
                "[[connector.libvirt.host]]",
                f'name = "{host.name}"\nuri = "{host.uri}"',
                f'migrate_uri = "tcp://{host.address}"',
                f"reboot = {json.dumps(host.reboot_command)}",
                f"boot_id = {json.dumps(host.boot_id_command)}",
                hosts.get(host.name, ""),
            ]
        return "\n".join(lines)

    def operations(self) -> list[dict[str, Any]]:
        """Return all operations that the service knows, the oldest first."""
        found: list[dict[str, Any]] = self.service.operator.get("/v1/history")["operations"]
        return found[::-1]

    def ended(self, seconds: float = ENDED_SECONDS) -> list[dict[str, Any]]:
        """Wait until no operation is queued, announced or under way; return all of them."""
        until(
            lambda: all(each["status"] in OVER for each in self.operations()),
            self.report,
            seconds=seconds,
        )
        return self.operations()

    def maintain(self, *arguments: str) -> dict[str, Any]:
        """Schedule maintenance, wait for its end, and return its operation."""
        self._schedule(*arguments)
        return self.ended()[-1]

    def begin(self, *arguments: str) -> None:
        """Schedule maintenance, and return when its task has begun."""
        before = set(self.runners())
        self._schedule(*arguments)
        until(lambda: set(self.runners()) - before, self.report)

    def _schedule(self, *arguments: str) -> None:
        """Schedule maintenance once the service knows who asks: it awaits no other machines."""
        until(lambda: self._asking() <= self._known(), self.report)
        self.forewarn("schedule", *arguments)

    def _asking(self) -> set[str]:
        return {name for name, guest in self.guests.items() if any(p.document for p in guest.polls)}

    def _known(self) -> set[str]:
        """Return the guests that the service has heard, or that are not of its fleet."""
        machines = self.service.operator.get("/v1/fleet/machines")["machines"]
        silent = {machine["name"] for machine in machines if machine["last_seen"] is None}
        return set(self.guests) - silent

    def runners(self) -> list[Path]:
        """Return the files in which the runs of tasks that are not over name their runners."""
        return sorted((self.folder / "service").glob("commands/*/[0-9]*/begun"))

    def report(self) -> str:
        """Return what a failed test wants to read: of the service, the hosts and the guests."""
        parts = [f"operations: {json.dumps(self.operations(), indent=1)}"]
        if self._service is not None:
            parts.append(f"service: {self.service.log.read_text()[-3000:]}")
        parts += [f"{name}: {host.log()}" for name, host in self.hosts.items()]
        parts += [f"{guest.name}: {guest.said()[-1000:]}" for guest in self.guests.values()]
        return "\n\n".join(parts)

    def close(self) -> None:
        """End everything."""
        if self._service is not None:
            self.service.stop()
        self._ended.set()
        self._watcher.join()
        for host in self.hosts.values():
            host.power_off()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            for guest in list(self.guests.values()):
                guest.read()
            for host in list(self.hosts.values()):
                if host.reboot_file.exists():
                    host.reboot_file.unlink()
                    threading.Thread(target=host.reboot, daemon=True).start()


def _network(address: str) -> None:
    for line in NETWORK:
        subprocess.run(line.format(address=address).split(), check=True)
