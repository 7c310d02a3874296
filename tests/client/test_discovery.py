"""Where the endpoint is: what is given, what the environment says, what leases tell."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stories
from forewarn.client import discovery
from forewarn.client.discovery import BadAddress, EndpointAddress, LeaseFile

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
LINK_LOCAL = "http://169.254.169.254"


def tried(
    address: str | None = None, leases: tuple[LeaseFile, ...] = (), **environment: str
) -> list[str]:
    return [str(each) for each in discovery.find(address, environment, NOW, lambda: leases)]


def lease(option: str, expire: str = "6 2026/11/22 01:48:29", interface: str = "eth0") -> str:
    """A lease as dhclient writes it on a machine of the cloud."""
    return f"""lease {{
  interface "{interface}";
  fixed-address 172.16.3.4;
  server-name "RD-1 {{rack; 3}}";
  option subnet-mask 255.255.255.0;
  option dhcp-lease-time 4294967295;
  option rfc3442-classless-static-routes 0,172,16,3,1,32,168,63,129,16,172,16,3,1;
  option {option};
  option domain-name "ix.internal.example.net";
  renew 6 2026/11/21 13:48:29;
  rebind 6 2026/11/21 13:48:29;
  expire {expire};
}}
"""


def dhclient(*texts: str) -> LeaseFile:
    return "dhclient", "".join(texts)


def networkd(option: str) -> LeaseFile:
    text = (
        "# This is private data. Do not parse.\nADDRESS=10.0.0.4\nNETMASK=255.255.255.0\n"
        f"ROUTER=10.0.0.1\nSERVER_ADDRESS=168.63.129.16\nLIFETIME=1h 30min\n{option}\n"
    )
    return "networkd", text


def of_lease(*files: LeaseFile) -> str | None:
    """The address that the leases tell, beside the link-local one."""
    rest = tried(leases=files)[1:]
    return rest[0] if rest else None


def test_addresses_and_leases_are_read_or_refused() -> None:
    for told, expected in stories.lines_beside(__file__, "addresses.txt"):
        kind, _, written = told.partition(" ")
        if kind == "find":
            assert found(written) == expected, told
        elif kind != "address":
            assert str(of_lease(LEASES[kind](written))) == expected, told
        elif expected == "refused":
            is_refused(written)
        else:
            endpoint = discovery.parse(written)
            assert str(endpoint) == expected, told
            assert discovery.parse(expected) == endpoint


def found(told: str) -> str:
    """Return the places to try, by an address that is given, the environment, and a lease."""
    words = told.split()
    given = dict(word.split("=") for word in words if "=" in word)
    leases = (networkd(f"OPTION_245={given.pop('lease')}"),) if "lease" in given else ()
    address = next((word for word in words if "=" not in word), None)
    return " ".join(tried(address, leases, **given))


LEASES: dict[str, Callable[[str], LeaseFile]] = {
    "option": lambda option: dhclient(lease(option)),
    "expire": lambda expire: dhclient(lease("unknown-245 a8:3f:81:10", expire)),
    "networkd": networkd,
}


def is_refused(address: str) -> None:
    with pytest.raises(BadAddress) as refused:
        discovery.parse(address)
    assert repr(address[:20])[1:-1] in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_an_empty_address_is_refused_and_does_not_lead_to_the_clouds_own() -> None:
    with pytest.raises(BadAddress):
        tried("", ())


def test_an_address_of_strange_signs_is_refused_and_told() -> None:
    for address in ("ho\u0455t", "[::1\x00]", "host:\u0661", "http://host/\r\nX: y", "h" * 3000):
        is_refused(address)
    for zone in ("%eth0", "%25eth0"):
        assert discovery.parse(f"[fe80::1{zone}]:81") == EndpointAddress("fe80::1%eth0", 81)


@given(st.text())
def test_any_text_is_an_address_or_refused_and_never_splits_a_request(text: str) -> None:
    try:
        endpoint = discovery.parse(text)
    except BadAddress:
        return
    assert not set(f"{endpoint.authority}{endpoint.prefix}") & set(" \r\n\t\x00")
    assert discovery.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize("variable", ["FOREWARN_ENDPOINT", "SCHEDULEDEVENTSIP"])
def test_a_variable_that_is_no_address_is_named(variable: str) -> None:
    with pytest.raises(BadAddress, match=variable):
        tried(**{variable: "a b"})


def test_the_last_lease_that_has_not_expired_counts() -> None:
    first = lease("unknown-245 a:0:0:1")
    second = lease("unknown-245 a:0:0:2", interface="eth1")
    over = lease("unknown-245 a:0:0:3", "6 2026/11/21 11:59:59")
    other = lease("routers 172.16.3.1")
    assert of_lease(dhclient(first, second, over, other)) == "http://10.0.0.2"
    assert of_lease(dhclient(over)) is None
    older, newer = dhclient(first), dhclient(second)
    assert of_lease(older, newer) == "http://10.0.0.2"
    assert of_lease(newer, older) == "http://10.0.0.1"
    assert of_lease(newer, networkd("OPTION_245=0a000009"), dhclient(over)) == "http://10.0.0.9"


def test_a_lease_that_is_not_whole_tells_nothing() -> None:
    whole = lease("unknown-245 a8:3f:81:10")
    assert of_lease(dhclient(whole[: whole.rindex("}")])) is None
    assert of_lease(dhclient(whole[whole.index("option") :])) is None  # its head is cut off
    assert of_lease(dhclient(whole, lease("unknown-245 a:0:0:2")[:150])) == "http://168.63.129.16"
    never = whole.replace("  expire 6 2026/11/22 01:48:29;\n", "")
    assert of_lease(dhclient(never)) is None


@given(st.text(), st.sampled_from(["dhclient", "networkd"]))
def test_no_lease_file_breaks_the_search(text: str, form: discovery.Format) -> None:
    found = tried(leases=((form, text),))
    assert found[0] == LINK_LOCAL


def written(path: Path, text: str, at: int) -> Path:
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def test_lease_files_are_read_the_newest_last(tmp_path: Path) -> None:
    written(tmp_path / "dhclient.eth0.leases", lease("unknown-245 a:0:0:1"), 3000)
    written(tmp_path / "dhclient.eth1.leases", lease("unknown-245 a:0:0:2"), 1000)
    (tmp_path / "leases").mkdir()
    written(tmp_path / "leases" / "2", "OPTION_245=0a000003\n", 2000)
    written(tmp_path / "other", lease("unknown-245 a:0:0:9"), 9000)
    patterns = ([f"{tmp_path}/dhclient*.leases"], [f"{tmp_path}/leases/*"])
    files = discovery.lease_files(*patterns)
    assert [of_lease(file) for file in files] == [f"http://10.0.0.{n}" for n in (2, 3, 1)]
    assert of_lease(*files) == "http://10.0.0.1"


def test_what_cannot_be_read_as_a_lease_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder.leases").mkdir()
    (tmp_path / "gone.leases").symlink_to(tmp_path / "nowhere")
    (tmp_path / "bytes.leases").write_bytes(bytes(range(256)))
    files = discovery.lease_files([f"{tmp_path}/*.leases"], [])
    assert len(files) == 1
    assert of_lease(*files) is None


def test_of_a_long_log_of_leases_the_end_is_read(tmp_path: Path) -> None:
    old = lease("unknown-245 a:0:0:1")
    text = old * (2 * discovery.MAX_LEASE_BYTES // len(old)) + lease("unknown-245 a:0:0:2")
    (tmp_path / "long.leases").write_text(text)
    (file,) = discovery.lease_files([f"{tmp_path}/*.leases"], [])
    assert len(file[1]) == discovery.MAX_LEASE_BYTES
    assert of_lease(file) == "http://10.0.0.2"


def test_lease_files_are_read_where_no_address_is_named_and_only_there() -> None:
    asked = []

    def read() -> tuple[LeaseFile, ...]:
        asked.append(True)
        return (networkd("OPTION_245=a83f8110"),)

    named = {"FOREWARN_ENDPOINT": "127.0.0.1:8170"}
    assert len(discovery.find(None, named, NOW, read)) == 1
    assert len(discovery.find("127.0.0.1", {}, NOW, read)) == 1
    assert not asked
    assert len(discovery.find(None, {}, NOW, read)) == 2
    assert asked
    assert discovery.find(None, {}, NOW)[0] == EndpointAddress("169.254.169.254")
