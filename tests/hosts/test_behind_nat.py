"""With root: guests behind their hosts' NAT, each of which has a proxy that signs, as guided.

The proxies stand where relays do otherwise, before the service alone.
The hosts' networks are libvirt's own, with its NAT; equal on both, so that a guest can move.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import nat
from hosts.guest import Guest
from hosts.host import until
from hosts.lab import ENDPOINT, Lab
from hosts.nat import BRIDGE, NETWORK, PAGE, SERVICE, run
from hosts.nat import HOSTS as PROXIES
from hosts.system_host import SystemHost
from recipes import pages

SIGNING = "proxies"
"""The page with the settings of proxies that sign."""
PEER = f"{NETWORK}.50"
ASK = """
import sys, urllib.request, urllib.error
asked = urllib.request.Request(sys.argv[1], headers={"Metadata": "true", **eval(sys.argv[2])})
try:
    print(urllib.request.urlopen(asked, timeout=float(sys.argv[3])).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(error)
"""
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


@pytest.fixture(scope="module")
def lab(as_root: None) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as folder:
        made = Lab(Path(folder), SystemHost, has_relays=False)
        proxies = []
        try:
            run(f"ip address add {SERVICE}/24 dev switch")
            serve(made)
            for name in PROXIES:
                prepare(made, name)
                proxies.append(proxy(made, name))
            yield made
        finally:
            for process in proxies:
                process.terminate()
                process.wait()
            made.close()


def serve(lab: Lab) -> None:
    """Start the service where the proxies ask, and give them what the page's command makes."""
    secret = lab.folder / "proxy.secret"
    secret.write_text("the secret of the proxies\n")
    secret.chmod(0o600)
    listener = pages.block(SIGNING, "toml", "trusted_proxies")
    listener = pages.placed(listener, {"/etc/forewarn/proxy.secret": str(secret)})
    for name in PROXIES:
        lab.host(name)
    lab.serve(listener + lab.libvirt())
    made = pages.block(SIGNING, "sh", "signatures.map")
    made = pages.placed(made, {"python3 -c": f"'{sys.executable}' -c"})
    subprocess.run(["sh", "-ec", made], cwd=lab.folder, check=True)


def prepare(lab: Lab, name: str) -> None:
    """Give a host what the page has where a proxy signs."""
    nat.prepare(lab, name)
    rules = pages.block(PAGE, "nft", "forewarn_proxy")
    run(f"ip netns exec {name} nft -f -", text=rules)


def proxy(lab: Lab, name: str) -> subprocess.Popen[bytes]:
    """Run a host's nginx with the page's settings."""
    block = pages.block(SIGNING, "nginx", "signatures.map")
    places = {"10.0.0.10 web-0": f"{NETWORK}.11 web-0", "10.0.0.11 web-1": f"{NETWORK}.12 web-1"}
    bind = {"proxy_bind 192.0.2.7": f"proxy_bind {PROXIES[name]}"}
    folder = lab.folder / f"nginx-{name}"
    folder.mkdir()
    block = pages.placed(block, places | bind | {"signatures.map": f"{lab.folder}/signatures.map"})
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"user root;\ndaemon off;\nmaster_process off;\npid {folder}/nginx.pid;\n"
        f"error_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log {folder}/access.log;\n{temporary}{block}}}\n"
    )
    inside = ["ip", "netns", "exec", name]
    return subprocess.Popen([*inside, "nginx", "-p", str(folder), "-c", f"{folder}/nginx.conf"])


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Guest:
    """A guest that the fleet knows by its name alone: what it reads came by a proxy that signed."""
    made = lab.guest("web-0", wire=BRIDGE, network=NETWORK, approve=True)
    made.start("h1")
    machine = {"name": made.name, "vm_id": made.vm_id, "host": "h1"}
    path = lab.folder / "fleet.json"
    path.write_text(json.dumps({"machine": [machine]}))
    lab.forewarn("fleet", "apply", str(path))
    made.wait_for_polls()
    return made


@pytest.fixture(scope="module")
def peer(lab: Lab, guest: Guest) -> str:
    """Another guest of h1's network, which the proxy does not know: a process with an address."""
    run("ip netns add peer")
    run("ip link add eth0 netns peer type veth peer name peer netns h1")
    run("ip netns exec h1 ip link set peer master virbr0 up")
    for line in (
        f"address add {PEER}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {NETWORK}.1",
    ):
        run(f"ip netns exec peer ip {line}")
    until(lambda: ask(ENDPOINT) == "403", lambda: ask(ENDPOINT))
    return "peer"


def ask(address: str, seconds: float = 60, **headers: str) -> str:
    """Ask as the peer; return the status, or what failed."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    command = [sys.executable, "-c", ASK, f"http://{address}{EVENTS}", repr(named), str(seconds)]
    inside = ["ip", "netns", "exec", "peer"]
    asked = subprocess.run([*inside, *command], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def test_a_guest_moves_from_one_hosts_proxy_to_anothers(lab: Lab, guest: Guest) -> None:
    asked, start = len(guest.polls), time.monotonic()
    operation = lab.maintain("freeze", guest.name, "--live-migration")
    assert operation["status"] == "Completed"
    assert guest.host() == "h2"
    guest.wait_for_polls(3)
    assert not guest.refused_polls(start), "only the connection to the old host's proxy is lost"
    assert any(poll.events for poll in guest.polls[asked:]), "it read of the move before"
    assert "APPROVED" in guest.said()
    for name in PROXIES:
        seen = (lab.folder / f"nginx-{name}" / "access.log").read_text()
        assert f"{guest.address} " in seen


def test_a_neighbour_speaks_for_nobody_by_headers_of_its_own(peer: str) -> None:
    assert ask(ENDPOINT, X_Instance_ID="web-0") == "403"


def test_no_guest_reaches_the_service_under_its_hosts_address(peer: str) -> None:
    service = f"{SERVICE}:8170"
    assert "timed out" in ask(service, seconds=3)
    run("ip netns exec h1 nft delete table ip forewarn_proxy")
    assert ask(service).isdecimal(), "by NAT it would come from the proxy's address"
