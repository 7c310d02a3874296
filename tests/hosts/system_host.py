"""A host whose libvirtd is root's: it has packet filters, which a session's has not."""

import shutil
from pathlib import Path

from hosts.host import Host, cache

FILTERS = Path("/etc/libvirt/nwfilter")


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
