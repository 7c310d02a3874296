"""Hosts whose libvirtd is root's: it has packet filters. One of them is reached by SSH alone."""

import shutil
import subprocess
from pathlib import Path

from hosts.host import BOOT_ID, Host, cache

FILTERS = Path("/etc/libvirt/nwfilter")
SSHD = "/usr/sbin/sshd"
KEY = "ssh_host_ed25519_key"
SETTINGS = """\
ListenAddress {address}
HostKey /etc/ssh/{key}
UsePAM no
PidFile none
"""
SYSTEMCTL = """\
#!/bin/sh
[ "$*" = reboot ] && exec touch {reboot_file}
exit 1
"""


class SystemHost(Host):
    """A host with a libvirtd of root, whose folders no other libvirtd of this machine shares.

    Args:
        folder, name, address: As for `Host`.
    """

    def _configure(self) -> None:
        super()._configure()
        self.socket = self.folder / "run" / "libvirt-sock"
        self.uri = f"qemu+unix:///system?socket={self.socket}"
        settings = self.folder / "config" / "libvirt"
        with (settings / "libvirtd.conf").open("a") as file:
            file.write(f'unix_sock_dir = "{self.socket.parent}"\nauth_unix_rw = "none"\n')
        with (settings / "qemu.conf").open("a") as file:
            file.write(
                'user = "root"\ngroup = "root"\nsecurity_driver = "none"\n'
                "cgroup_controllers = []\nnamespaces = []\n"
            )
        shutil.copytree(FILTERS, settings / "nwfilter")
        (self.folder / "data").mkdir()
        (cache() / "system").mkdir(parents=True, exist_ok=True)

    def _environment(self) -> dict[str, str]:
        return {}

    def _init(self) -> str:
        """Return the line of shell that becomes its first process."""
        settings = self.folder / "config" / "libvirt"
        lines = (
            f"hostname {self.name}",
            "mount -t tmpfs tmpfs /run",
            f"mount --bind {settings} /etc/libvirt",
            f"mount --bind {self.folder / 'data'} /var/lib/libvirt",
            f"mount --bind {cache() / 'system'} /var/cache/libvirt",
        )
        return " && ".join((*lines, 'exec "$@"'))

    def add_tap(self, name: str) -> None:
        """Make nothing: this libvirtd makes the interfaces of its guests itself."""


class SshHost(SystemHost):
    """A host with an sshd, whose root has a home; its `systemctl reboot` cuts its power.

    libvirt's socket is at its usual place there, so its URI needs no path.
    """

    def _configure(self) -> None:
        super()._configure()
        self.home = Path("~root").expanduser()
        (self.folder / "root" / ".ssh").mkdir(parents=True, mode=0o700)
        (self.folder / "root").chmod(0o700)
        operator = self.home / ".ssh" / "id_ed25519.pub"
        shutil.copy(operator, self.folder / "root" / ".ssh" / "authorized_keys")
        ssh = self.folder / "ssh"
        ssh.mkdir()
        text = SETTINGS.format(address=self.address, key=KEY)
        (ssh / "sshd_config").write_text(text)
        generate(ssh / KEY)
        systemctl = self.folder / "systemctl"
        systemctl.write_text(SYSTEMCTL.format(reboot_file=self.reboot_file))
        systemctl.chmod(0o755)

    def _init(self) -> str:
        """Return the line of shell that becomes its first process."""
        before, _, after = super()._init().rpartition(" && ")
        lines = (
            before,
            f"mount --bind {self.folder / 'root'} {self.home}",
            f"mount --bind {self.folder / 'ssh'} /etc/ssh",
            f"mount --bind {self.folder / 'systemctl'} $(realpath $(command -v systemctl))",
            f"mount --bind {self.boot_id_file} {BOOT_ID.with_name('boot_id')}",
            "mkdir /run/sshd /run/libvirt",
            f"ln -s {self.socket} /run/libvirt/libvirt-sock",
            SSHD,
        )
        return " && ".join((*lines, after))


def generate(path: Path) -> None:
    """Make a key without a passphrase."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)
