"""A host that is reached by its name over SSH alone, as a host of metal is."""

import shutil
import subprocess
from pathlib import Path

from hosts.host import BOOT_ID
from hosts.system_host import SystemHost

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
