"""Hosts whose guests are behind their NAT, as guided: libvirt's own networks, equal on both.

So a guest that moves finds the same router there, and the address 169.254.169.254 on it.
"""

import shlex
import subprocess
from typing import Final

from hosts.lab import Lab
from recipes import pages

PAGE: Final = "libvirt"
PRODUCTION: Final = "production"
NETWORK: Final = "192.168.122"
BRIDGE: Final = "<source bridge='virbr0'/>"
SERVICE: Final = "192.0.2.10"
HOSTS: Final = {"h1": "192.0.2.7", "h2": "192.0.2.8"}


def run(command: str, *, text: str | None = None) -> None:
    """Run a command, which is to succeed."""
    subprocess.run(shlex.split(command), input=text, text=True, check=True)


def prepare(lab: Lab, name: str) -> None:
    """Give a host its address, the guests' network, and what the page has on every host."""
    inside = f"ip netns exec {name}"
    run(f"{inside} ip address add {HOSTS[name]}/24 dev bridge")
    network = pages.block(PRODUCTION, "xml", "<network")
    bridge = "  <bridge name='virbr0' stp='on' delay='0'/>\n"
    network = pages.placed(network, {bridge: bridge + pages.block(PAGE, "xml", "<mac")})
    host = lab.hosts[name]
    path = host.folder / "network.xml"
    path.write_text(network)
    host.virsh("net-define", str(path))
    host.virsh("net-start", "default")
    run(f"{inside} {pages.blocks(PAGE, 'sh')[0].strip()}")
    run(f"{inside} nft -f -", text=pages.block(PRODUCTION, "nft", "table ip forewarn "))
