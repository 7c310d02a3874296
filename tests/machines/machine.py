"""A virtual machine of the test's own: the host's files, read-only, below a disk that is its own.

So it runs the host's systemd and the very programs under test. It reaches nobody but the service,
at 169.254.169.254. A cut of its power kills QEMU: what was not written to the disk is lost. QEMU
ends too where the machine reboots by itself, and is started again each time it has ended.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from end_to_end.agents import until
from machines import image

PATIENCE_SECONDS = 300
"""With whatever is waited for: an emulated processor boots in half a minute, a busy one in two."""
MEMORY_MIB = 768
NAME = "web-0"

FILES_HERE = Path(__file__).with_name("files")
SCRIPTS = FILES_HERE.glob("*.sh")
FILES = {
    **{f"/usr/local/bin/{path.stem}": path.read_text(encoding="utf-8") for path in SCRIPTS},
    "/etc/fstab": "",
    "/etc/hostname": f"{NAME}\n",
    "/etc/machine-id": "3f2a9c6e1b7d4f0895acde0137642b8f\n",
    "/etc/systemd/system/inside@.service": f"""[Service]
Environment=LD_LIBRARY_PATH={image.PYTHON}/lib
ExecStart={image.PYTHON}/bin/python3 {image.SOURCE}/tests/machines/inside.py %i
""",
}
MASKED = (FILES_HERE / "masked.txt").read_text(encoding="utf-8")
"""What a boot can do without: a machine whose processor is emulated spends seconds on each."""
KERNEL = (
    "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests "
    "clocksource=acpi_pm "  # a busy host makes an emulated processor's own clock run too fast
    "systemd.show_status=no systemd.default_timeout_start_sec=300 "
    "systemd.wants=inside@tests.service "
) + " ".join(f"systemd.mask={unit}" for unit in MASKED.split())


class Machine:
    """One virtual machine, in which commands run by a virtio port; its boots are told apart.

    Args:
        folder: Its own; the path is short, for sockets.
        port: Of the host's loopback, which it sees at 169.254.169.254, port 80; 0 for none.
        files: What its root holds beside the host's, by path.
    """

    def __init__(self, folder: Path, port: int = 0, files: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.boot = ""
        qemu = command(folder, port, *image.make(folder, FILES | (files or {})))
        again = ["sh", "-c", 'while "$@" || [ $? = 137 ]; do :; done', "again", *qemu]
        self._process = subprocess.Popen(again, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            self._connect()
            self._await_boot()
        except BaseException:
            self._end()
            raise

    def _connect(self) -> None:
        path = str(self.folder / "tests.sock")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_SECONDS + 60)
        until(lambda: self._socket.connect_ex(path) == 0, seconds=PATIENCE_SECONDS)
        self._lines = self._socket.makefile("rb")

    def _disconnect(self) -> None:
        self._lines.close()
        self._socket.close()

    def _await_boot(self) -> None:
        """Wait until it is up by another boot."""
        before = self.boot
        while self.boot == before:
            self._read()

    def _read(self) -> dict[str, Any]:
        while True:
            line = b""
            with contextlib.suppress(ConnectionError):
                line = self._lines.readline()
            if not line:  # its power was cut
                self._disconnect()
                self._connect()
            with contextlib.suppress(ValueError):  # half a line, which a cut has ended
                told: dict[str, Any] = json.loads(line)
                self.boot = told["boot"]
                return told

    def call(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program as root; return how it ended."""
        before = self.boot
        self._socket.sendall(json.dumps({"run": argv, "stdin": stdin}).encode() + b"\n")
        while "status" not in (told := self._read()):
            assert before == self.boot, "the machine has booted instead"
        return subprocess.CompletedProcess(argv, told["status"], told["stdout"], told["stderr"])

    def run(self, *argv: str, stdin: str = "") -> str:
        """Run a program as root, which is to succeed; return what it printed."""
        ran = self.call(*argv, stdin=stdin)
        assert ran.returncode == 0, (argv, ran.stdout, ran.stderr)
        return ran.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file, durably."""
        self.run("sh", "-c", 'mkdir -p "${0%/*}" && cat > "$0" && sync', path, stdin=text)

    def until(self, holds: str) -> None:
        """Wait until a line of shell succeeds in it."""
        waits = f"until {holds}; do sleep 0.3; done"
        ran = self.call("timeout", str(PATIENCE_SECONDS), "sh", "-c", waits)
        assert ran.returncode == 0, (holds, ran.stdout[-3000:], self.journal()[-5000:])

    def journal(self, *options: str) -> str:
        """Return what its journal has of this boot."""
        return self.run("journalctl", "--boot", "--output=cat", "--no-pager", *options)

    def cut(self) -> None:
        """Cut its power, and wait until it is up again."""
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        self._await_boot()

    def close(self) -> None:
        self._disconnect()
        self._end()

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def command(folder: Path, port: int, kernel: Path, initramfs: Path, disk: Path) -> list[str]:
    """Return how QEMU is started; nothing of the host can be written but the disk."""
    net = "user,id=net,restrict=on,net=169.254.169.0/24,host=169.254.169.1"
    if port:
        net += f",guestfwd=tcp:169.254.169.254:80-cmd:busybox nc 127.0.0.1 {port}"
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        *(["-accel", "kvm", "-cpu", "host"] if accelerated() else ["-accel", "tcg", "-cpu", "max"]),
        "-m", str(MEMORY_MIB), "-kernel", str(kernel), "-initrd", str(initramfs),
        "-append", KERNEL, "-serial", f"file:{folder / 'console.log'}",
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        "-drive", f"file={disk},if=virtio,format=raw",
        "-netdev", net, "-device", "virtio-net-pci,netdev=net,romfile=",
        "-chardev", f"socket,id=tests,path={folder / 'tests.sock'},server=on,wait=off",
        "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=tests,name=tests",
        "-no-reboot", "-pidfile", str(folder / "pid"),
    ]  # fmt: skip


def accelerated() -> bool:
    """Tell whether KVM runs any kernel: by the processor's own means, and not by the guest's."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return bool(flags & {"vmx", "svm"}) and os.access("/dev/kvm", os.R_OK | os.W_OK)
