"""With root: guests behind their hosts' NAT, as guided: libvirt's own networks, equal on both.

So a guest that moves finds the same router there, and the address 169.254.169.254 on it. Each host
has a proxy that signs, which is started here, by hand.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from end_to_end import nginx
from hosts import lab as labs
from hosts.guest import FILTER, Guest
from hosts.host import until
from hosts.lab import ENDPOINT, Lab
from hosts.system_host import SystemHost
from recipes import pages

PAGE = "libvirt"
PRODUCTION = "production"
SIGNING = "proxies"
"""The page with the settings of proxies that sign."""
NETWORK = "192.168.122"
BRIDGE = "<source bridge='virbr0'/>" + FILTER
SERVICE = "192.0.2.10"
HOSTS = {"h1": "192.0.2.7", "h2": "192.0.2.8"}
PEER = f"{NETWORK}.50"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


def run(command: str, *, text: str | None = None) -> None:
    """Run a command, which is to succeed."""
    subprocess.run(shlex.split(command), input=text, text=True, check=True)


@pytest.fixture(scope="module")
def lab(as_root: None) -> Iterator[Lab]:
    """Two hosts with the pages' networks and rules, and the service where they ask."""
    with labs.made(kind=SystemHost, has_relays=False) as made:
        run(f"ip address add {SERVICE}/24 dev switch")
        secret = made.folder / "proxy.secret"
        secret.write_text("the secret of the proxies\n")
        secret.chmod(0o600)
        listener = pages.block(SIGNING, "toml", "trusted_proxies")
        listener = pages.placed(listener, {"/etc/forewarn/proxy.secret": str(secret)})
        for name in HOSTS:
            made.host(name)
        made.serve(listener + made.libvirt())
        for name in HOSTS:
            prepare(made, name)
        yield made


def prepare(lab: Lab, name: str) -> None:
    """Give a host its address, the guests' network, and what the pages have on every host."""
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
    run(f"{inside} {pages.block(PRODUCTION, 'sh', 'address add').strip()}")
    for page, words in ((PRODUCTION, "table ip forewarn "), (PAGE, "forewarn_proxy")):
        run(f"{inside} nft -f -", text=pages.block(page, "nft", words))


@pytest.fixture(scope="module")
def proxies(lab: Lab) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The nginx of each host with the page's settings, and the map that its command makes."""
    command = pages.block(SIGNING, "sh", "signatures.map")
    command = pages.placed(command, {"python3 -c": f"'{sys.executable}' -c"})
    subprocess.run(["sh", "-ec", command], cwd=lab.folder, check=True)
    made = []
    for name, address in HOSTS.items():
        places = {
            "10.0.0.10 web-0": f"{NETWORK}.11 web-0",
            "10.0.0.11 web-1": f"{NETWORK}.12 web-1",
            "proxy_bind 192.0.2.7": f"proxy_bind {address}",
            "signatures.map": f"{lab.folder}/signatures.map",
        }
        block = pages.placed(pages.block(SIGNING, "nginx", "signatures.map"), places)
        folder = lab.folder / f"nginx-{name}"
        folder.mkdir()
        command = nginx.configured(folder, block, "user root;\n")
        made.append(subprocess.Popen(["ip", "netns", "exec", name, *command]))
    yield made
    for each in made:
        each.terminate()
        each.wait()


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """Guests of h1 that the fleet knows by their names alone; a filter holds their addresses."""
    homes = dict.fromkeys(("web-0", "web-1"), "h1")
    made = lab.start(homes, wire=BRIDGE, network=NETWORK, approve=True)
    lab.fleet(made, address="")
    return made


def move(lab: Lab, guest: Guest) -> None:
    """Move it by maintenance, of which it reads before, and which it approves."""
    asked, start = len(guest.polls), time.monotonic()
    operation = lab.maintain("freeze", guest.name, "--live-migration")
    assert (operation["status"], operation["start_cause"]) == ("Completed", "approved")
    guest.wait_for_polls(3)
    assert not guest.refused_polls(start), "only the connection to the old host's proxy is lost"
    assert any(poll.events for poll in guest.polls[asked:])


@pytest.mark.usefixtures("proxies")
def test_a_guest_moves_from_one_hosts_proxy_to_anothers(lab: Lab, guests: list[Guest]) -> None:
    move(lab, guests[0])
    assert guests[0].host() == "h2"


@pytest.fixture(scope="module")
def peer(lab: Lab, guests: list[Guest]) -> str:
    """Another guest of h1's network, which the proxy does not know: a process with an address."""
    assert guests
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


def ask(address: str, *headers: str, seconds: int = 60) -> str:
    """Ask as the peer; return the status, 000 where there was no answer."""
    given = [word for header in ("Metadata: true", *headers) for word in ("--header", header)]
    curl = f"curl --silent --output /dev/null --write-out %{{http_code}} --max-time {seconds}"
    command = ["ip", "netns", "exec", "peer", *curl.split(), *given, f"http://{address}{EVENTS}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.usefixtures("proxies", "peer")
def test_a_neighbour_speaks_for_nobody_and_does_not_reach_the_service_under_its_hosts_address() -> (
    None
):
    assert ask(ENDPOINT, "X-Instance-ID: web-0") == "403"
    service = f"{SERVICE}:8170"
    assert ask(service, seconds=3) == "000"
    run("ip netns exec h1 nft delete table ip forewarn_proxy")
    assert ask(service) != "000", "by NAT it would come from the proxy's address"
