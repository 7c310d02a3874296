"""One host: a libvirtd in a network, a PID and a UTS namespace of its own, with a bridge.

Guests ask 169.254.169.254. On a host with a relay that address is the host's own, and the guests'
bridge ends there, as libvirt's networks do: it is their router, and has the same addresses on every
host, so that a guest that moves finds the same one. Without a relay the bridge goes on into the
network between the hosts, where the service is.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import forked
import patience

HERE = Path(__file__).resolve().parent
CALL_SECONDS = 180
START_SECONDS = 180
"""For a machine that does much else: a quiet one takes a second. On a new machine each libvirtd
first finds out what QEMU can do, for some 5 s of processor."""
until = functools.partial(patience.until, seconds=180, every=0.1)
"""Wait as the end-to-end tests do, but look less often: each look is a process or a request."""
IDS = uuid.UUID("6c5c5f0e-7a5c-4f0e-9d5c-3d1d4f5f7a10")
"""The names of a host's and a guest's uuid: the same in every run."""
BOOT_ID = Path("/proc/sys/kernel/random/uuid")
DAEMON = "libvirtd --pid-file {folder}/libvirtd.pid"
ENDPOINT = "169.254.169.254"
ROUTER = "10.99.0.1"
"""Of the guests: their host where it has a relay, else the machine that the service is on."""
ROUTER_MAC = "52:54:00:7a:00:01"


class Host:
    """A host whose power can be cut, and which comes back with nothing running.

    Args:
        folder: Of the lab; the host has its own in it.
        name: Such as h1: its host name and that of its network namespace.
        address: Its own in the lab's network.
        has_relay: Whether `relay` is to answer its guests.
    """

    def __init__(self, folder: Path, name: str, address: str, *, has_relay: bool) -> None:
        self.name = name
        self.address = address
        self.folder = folder / name
        self.socket = self.folder / "run" / "libvirt" / "libvirt-sock"
        self.uri = f"qemu+unix:///session?socket={self.socket}"
        self.boot_id_file = self.folder / "boot_id"
        self.reboot_file = self.folder / "reboot"
        self.reboots = 0
        self._changes = threading.RLock()
        self.relay: Path | None = None
        """The settings of the relay that runs while the host has power; None for none."""
        self._process: subprocess.Popen[bytes] | None = None
        self._relaying: subprocess.Popen[bytes] | None = None
        self._configure()
        _network(name, address, has_relay=has_relay)

    def _configure(self) -> None:
        (self.folder / "run").mkdir(parents=True, mode=0o700)
        settings = self.folder / "config" / "libvirt"
        settings.mkdir(parents=True)
        (settings / "libvirtd.conf").write_text(
            f'host_uuid = "{uuid.uuid5(IDS, self.name)}"\n'  # migration refuses equal ones
            f'log_outputs = "3:file:{self.folder}/libvirtd.log"\n'
        )
        (settings / "qemu.conf").write_text(
            'stdio_handler = "file"\n'  # and no virtlogd
            f'migration_host = "{self.address}"\nmigration_address = "{self.address}"\n'
        )

    @property
    def boot_id(self) -> str:
        """The id of its present boot, or of the last one."""
        return self.boot_id_file.read_text().strip()

    @property
    def boot_id_command(self) -> list[str]:
        """What prints the boot id, as `ssh h1 cat /proc/sys/kernel/random/boot_id` does."""
        return ["cat", str(self.boot_id_file)]

    @property
    def reboot_command(self) -> list[str]:
        """What reboots it, as `ssh h1 systemctl reboot` does: it returns before it is done."""
        return ["touch", str(self.reboot_file)]

    def power_on(self) -> None:
        """Boot it, and wait until its libvirtd answers."""
        with self._changes:
            self._boot()

    def _boot(self) -> None:
        # A boot begins with an empty /run. A guest's status of the last boot names a process id,
        # which in the new namespace may be libvirtd's own: it would end itself.
        shutil.rmtree(self.folder / "run")
        (self.folder / "run").mkdir(mode=0o700)
        (self.folder / "libvirtd.pid").unlink(missing_ok=True)
        self.boot_id_file.write_text(BOOT_ID.read_text())
        reaper = [sys.executable, str(HERE / "reaper.py"), "--stay"]
        command = [
            *("ip", "netns", "exec", self.name),
            *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", self._init(), "sh", *reaper, *DAEMON.format(folder=self.folder).split()),
        ]
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **self._environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._has_begun, self.log)
        self.start_relay()  # a host's units start it beside libvirtd, and its socket before both
        self.wait_for_daemon()

    def start_relay(self) -> None:
        """Let its relay run, if it has one: with the host's power its process ends."""
        if self.relay is None:
            return
        inside = ("nsenter", f"--target={self.init()}", "--net", "--pid", "--mount", "--uts")
        command = [sys.executable, "-m", "forewarn.relay.run", "--config", str(self.relay)]
        with (self.folder / "relay.log").open("ab") as log:
            self._relaying = subprocess.Popen(
                [*inside, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill_relay(self) -> None:
        """Take its relay away, and nothing else."""
        assert self._relaying is not None
        relay = self._process_of(Path(sys.executable).name, "forewarn.relay.run")
        os.kill(relay, signal.SIGKILL)
        self._relaying.wait(START_SECONDS)

    def _environment(self) -> dict[str, str]:
        own = {
            "HOME": self.folder,
            "XDG_RUNTIME_DIR": self.folder / "run",
            "XDG_CONFIG_HOME": self.folder / "config",
            "XDG_DATA_HOME": self.folder / "data",
            "XDG_CACHE_HOME": cache(),
        }
        return {name: str(path) for name, path in own.items()}

    def _init(self) -> str:
        """Return the line of shell that becomes its first process: `$@` is what that runs.

        A libvirtd whose user is not 0 is a session's: it needs neither cgroups nor D-Bus. But it
        wants a user with a name: 1 is `daemon` everywhere.
        """
        as_user = "exec unshare --user --map-user=1 --map-group=1"
        return f'hostname {self.name}; {as_user} "$@"'

    def wait_for_daemon(self) -> None:
        """Wait until its libvirtd answers."""
        until(self._answers, self.log)

    def _answers(self) -> bool:
        return self.socket.exists() and self.call("uri").returncode == 0

    def power_off(self) -> None:
        """Cut its power: every process on it ends in this instant."""
        with self._changes:
            if self._process is None:
                return
            try:
                os.kill(self.init(), signal.SIGKILL)
            except (OSError, ValueError):  # it has no first process: it did not come up
                self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None
            if self._relaying is not None:
                self._relaying.wait(START_SECONDS)
                self._relaying = None

    def reboot(self) -> None:
        """Cut its power and boot it again: none of its guests runs then."""
        with self._changes:
            self.power_off()
            self.power_on()
            self.reboots += 1

    def init(self) -> int:
        """Return the id of its first process, as this process sees it."""
        assert self._process is not None, f"{self.name} has no power"
        pid = self._process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def _has_begun(self) -> bool:
        try:
            return self.init() > 0
        except (OSError, ValueError):
            return False

    def daemon(self) -> int:
        """Return the process id of its libvirtd, as this process sees it."""
        return self._process_of("libvirtd")

    def start_daemon(self) -> None:
        """Start its libvirtd again, after it was killed, and wait until it answers."""
        (self.folder / "libvirtd.pid").unlink(missing_ok=True)
        os.kill(self.init(), signal.SIGUSR1)
        self.wait_for_daemon()

    def qemu(self, guest: str) -> int:
        """Return the process id of a guest's QEMU on this host, as this process sees it.

        A guest is in libvirt's list a moment before its process is QEMU.
        """
        return self._process_of("qemu-system-x86_64", f"guest={guest},")

    def _process_of(self, program: str, argument: str = "") -> int:
        found: list[int] = []
        until(
            lambda: found.extend(self._processes(program, argument)) or found,
            lambda: f"{self.name} runs no {program} {argument}",
        )
        return found[0]

    def _processes(self, program: str, argument: str) -> Iterator[int]:
        of = Path(f"/proc/{self.init()}/ns/pid").readlink()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                command = (folder / "cmdline").read_text().split("\0")
                ours = command[0].rpartition("/")[2] == program
                told = not argument or any(each.startswith(argument) for each in command)
                if ours and told and (folder / "ns" / "pid").readlink() == of:
                    yield int(folder.name)

    def call(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run virsh against it."""
        command = ["virsh", "--quiet", "--connect", self.uri, *arguments]
        return forked.completed(command, input=stdin, timeout=CALL_SECONDS)

    def virsh(self, *arguments: str, stdin: str | None = None) -> str:
        """Run virsh against it, which is to succeed; return what it printed."""
        called = self.call(*arguments, stdin=stdin)
        assert called.returncode == 0, (self.name, arguments, called.stderr)
        return called.stdout.strip()

    def running(self) -> set[str]:
        """Return the names of the guests that are active on it."""
        return set(self.virsh("list", "--name").split())

    def defined(self) -> set[str]:
        """Return the names of the guests that are defined on it, active or not."""
        return set(self.virsh("list", "--all", "--name").split())

    def link(self, state: str) -> None:
        """Set its only cable `up` or `down`; the way to its libvirtd is no part of it."""
        _ip("link", "set", f"{self.name}-cable", state)

    def add_tap(self, name: str) -> None:
        """Make what a guest's interface is tied to; a guest has one on each host."""
        inside = ("netns", "exec", self.name, "ip")
        _ip(*inside, "tuntap", "add", name, "mode", "tap", "user", "0")
        _ip(*inside, "link", "set", name, "master", "bridge", "up")

    def log(self) -> str:
        """Return the ends of what its libvirtd and its relay have logged and printed."""
        paths = [self.folder / name for name in ("libvirtd.log", "output", "relay.log")]
        return json.dumps([p.read_text()[-3000:] for p in paths if p.exists()], indent=1)


def cache() -> Path:
    """Return the folder that stays between runs: what QEMU can do takes 5 s to find out."""
    known = os.environ.get("XDG_CACHE_HOME")
    return (Path(known) if known else Path.home() / ".cache") / "forewarn" / "hosts"


def _network(name: str, address: str, *, has_relay: bool) -> None:
    inside = ("netns", "exec", name, "ip")
    cable = f"{name}-cable"
    _ip("netns", "add", name)
    _ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", cable)
    _ip("link", "set", cable, "master", "switch", "up")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "link", "add", "bridge", "type", "bridge")
    if has_relay:
        _ip(*inside, "link", "set", "bridge", "address", ROUTER_MAC)
        _ip(*inside, "address", "add", f"{ENDPOINT}/32", "dev", "lo")
        _ip(*inside, "address", "add", f"{ROUTER}/26", "dev", "bridge")
        _ip(*inside, "address", "add", f"{address}/27", "dev", "cable")
    else:
        _ip(*inside, "address", "add", f"{address}/24", "dev", "bridge")
        _ip(*inside, "link", "set", "cable", "master", "bridge")
    _ip(*inside, "link", "set", "bridge", "up")
    _ip(*inside, "link", "set", "cable", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
