"""The program that reads libvirt's domains, beside libvirt's driver for tests."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import patience
from connectors import hypervisor
from forewarn.connectors import libvirt_domains

UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
"""That of the test driver's domain."""

real = pytest.mark.skipif(
    not hypervisor.has_libvirt(), reason=f"{hypervisor.PYTHON} has no libvirt module"
)

NODE = """
<node>
  <cpu><mhz>2400</mhz><model>x</model><active>1</active><nodes>1</nodes><sockets>1</sockets>
  <cores>1</cores><threads>1</threads></cpu><memory>8192000</memory>
  {domains}
  <network><name>lan</name><bridge name='virbr9'/><ip address='10.0.0.1' netmask='255.255.255.0'>
    <dhcp><range start='10.0.0.100' end='10.0.0.200'/>
    <host mac='52:54:00:00:00:02' ip='10.0.0.12'/></dhcp></ip></network>
</node>
"""

DOMAIN = """
  <domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>65536</memory>
    <metadata>{metadata}</metadata>
    <os><type>hvm</type></os><devices>{devices}</devices></domain>
"""

TAG = "<f:machine xmlns:f='urn:forewarn:machine:1' scope='web' update-domain='2'/>"

RESERVED = """<interface type='network'><mac address='52:54:00:00:00:02'/>
  <source network='lan'/></interface>"""
FILTERED = """<interface type='network'><mac address='52:54:00:00:00:03'/>
  <source network='lan'/><filterref filter='clean-traffic'>
  <parameter name='IP' value='10.0.0.13'/></filterref></interface>"""


def run(*arguments: str, given: str = "", python: str = hypervisor.PYTHON) -> dict[str, Any]:
    """Return what the program's last line says."""
    argv = [python, "-I", str(hypervisor.PROGRAM), *arguments]
    done = subprocess.run(
        argv, input=given, check=False, capture_output=True, text=True, timeout=patience.SECONDS
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (1 if "error" in told else 0)
    assert not done.stderr
    return told


def node(folder: Path, *domains: dict[str, str]) -> str:
    """Write a host for the test driver, and return its URI."""
    made = [
        DOMAIN.format(**{"metadata": "", "devices": "", "uuid": UUID[:-1] + str(n)} | each)
        for n, each in enumerate(domains)
    ]
    (folder / "node.xml").write_text(NODE.format(domains="".join(made)), encoding="utf-8")
    return f"test://{folder / 'node.xml'}"


@real
def test_a_list_has_each_domain_with_its_tag_and_addresses(tmp_path: Path) -> None:
    uri = node(
        tmp_path,
        {"name": "web-0", "metadata": TAG, "devices": RESERVED},
        {"name": "web-1", "devices": FILTERED},
        {"name": "plain"},
    )
    (host,) = run("list", uri)["hosts"]
    assert host["hostname"]
    found = {domain["name"]: domain for domain in host["domains"]}
    assert [found[name]["uuid"][-1] for name in ("web-0", "web-1", "plain")] == ["0", "1", "2"]
    assert found["web-0"]["tag"] == {
        "scope": "web",
        "update-domain": "2",
        "name": "",
        "address": "",
    }
    assert found["plain"]["tag"] is None
    (reserved,), (filtered,) = found["web-0"]["interfaces"], found["web-1"]["interfaces"]
    assert (reserved["ip"], reserved["reserved"], reserved["enforced"]) == ("", "10.0.0.12", False)
    assert (filtered["ip"], filtered["reserved"]) == ("10.0.0.13", "")
    assert filtered["enforced"]
    assert found["plain"]["interfaces"] == []
    assert found["web-0"]["state"] == "running"


@real
def test_a_host_that_does_not_answer_is_named(tmp_path: Path) -> None:
    uri = f"qemu+unix:///session?socket={tmp_path}/none"
    assert uri in run("list", "test:///default", uri)["error"]


def test_a_python_without_the_library_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    told = run("list", "test:///default", python=str(bare / "bin" / "python"))
    assert told["code"] == "no-library"


@real
def test_a_tag_is_written_and_what_is_not_given_stays(tmp_path: Path) -> None:
    uri = node(tmp_path, {"name": "web-0", "metadata": TAG})
    tag = {"scope": None, "update-domain": "1", "name": None, "address": "10.0.0.10"}
    told = run("tag", given=json.dumps({"uris": [uri], "domain": "web-0", "tag": tag}))
    assert told["uuid"] == UUID[:-1] + "0"
    assert told["tag"] == {
        "scope": "web",
        "update-domain": "1",
        "name": "",
        "address": "10.0.0.10",
    }


@real
def test_a_tag_is_written_where_the_domain_runs_and_where_it_is_defined() -> None:
    with hypervisor.watching() as watched:
        watched.next()
        tag = {"scope": "web", "update-domain": "1"}
        watched.does(f"program.HostConnection(libvirt, URI).write_tag(domain, {tag})")
        metadata = "domain.metadata(2, program.MACHINE, {})"
        for flag in (1, 2):  # the running domain, and its definition
            watched.does(f"program.say({{'read': {metadata.format(flag)}}})")
            assert 'scope="web" update-domain="1"' in watched.next()["read"]


@real
def test_a_domain_that_does_not_exist_has_no_tag_written(tmp_path: Path) -> None:
    uri = node(tmp_path, {"name": "web-0"})
    asked = {"uris": [uri], "domain": "web-7", "tag": {"scope": "web"}}
    assert "web-7" in run("tag", given=json.dumps(asked))["error"]


@real
def test_a_name_of_two_domains_needs_a_uuid(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    uris = [
        node(tmp_path, {"name": "web-0"}),
        node(tmp_path / "other", {"name": "web-0", "uuid": UUID}),
    ]
    asked = {"uris": uris, "domain": "web-0", "tag": {"scope": "web"}}
    assert UUID in run("tag", given=json.dumps(asked))["error"]
    told = run("tag", given=json.dumps({**asked, "domain": UUID}))
    assert (told["uuid"], told["tag"]["scope"]) == (UUID, "web")


@real
def test_a_watch_lists_first_and_then_tells_each_event_with_the_state_after_it() -> None:
    with hypervisor.watching() as watched:
        (listed,) = watched.next()["domains"]
        assert listed == {
            "uuid": UUID,
            "name": "test",
            "state": "running",
            "reason": "",
            "tagged": False,
            "migrating": False,
        }
        for statement, event, detail, state, reason in (
            ("domain.suspend()", "SUSPENDED", "0", "paused", ""),
            ("domain.resume()", "RESUMED", "0", "running", ""),
            ("domain.destroy()", "STOPPED", "DESTROYED", "off", "destroyed"),
            ("domain.create()", "STARTED", "0", "running", ""),
        ):
            watched.does(statement)
            told = watched.next()
            assert (told["event"], told["detail"]) == (event, detail)
            assert (told["domain"]["state"], told["domain"]["reason"]) == (state, reason)
        assert watched.hangs_up() == 0


@real
def test_a_watch_tells_of_a_tag_and_of_a_domain_that_goes() -> None:
    with hypervisor.watching() as watched:
        watched.next()
        tag = '<machine scope="web"/>'
        watched.does(f"domain.setMetadata(2, '{tag}', 'forewarn', 'urn:forewarn:machine:1', 3)")
        watched.does("domain.suspend()")
        assert watched.next()["domain"]["tagged"]
        watched.does("domain.destroy()")
        watched.next()
        watched.does("domain.undefine()")
        told = watched.next()
        assert (told["event"], told["domain"]["state"]) == ("UNDEFINED", "gone")


@real
def test_a_watch_looks_where_it_is_asked() -> None:
    with hypervisor.watching() as watched:
        watched.next()
        watched.looks(UUID)
        found = watched.next()["domain"]
        assert (found["name"], found["state"], found["migrating"]) == ("test", "running", False)
        absent = UUID[:-1] + "0"
        watched.looks(absent)
        assert watched.next()["domain"] == {
            "uuid": absent,
            "name": "",
            "state": "gone",
            "reason": "",
        }


@real
def test_a_watch_of_a_host_that_does_not_answer_says_why_and_ends(tmp_path: Path) -> None:
    uri = f"qemu+unix:///session?socket={tmp_path}/none"
    assert uri in run("watch", uri)["error"]


@pytest.mark.parametrize(
    ("numbers", "state"),
    [
        ((1, 1), ("running", "")),
        ((3, 1), ("paused", "")),
        ((3, 2), ("handover", "")),
        ((3, 11), ("handover", "")),
        ((5, 6), ("off", "failed")),
        ((5, 99), ("off", "unknown")),
        ((6, 1), ("crashed", "")),
    ],
)
def test_a_state_has_a_name(numbers: tuple[int, int], state: tuple[str, str]) -> None:
    assert libvirt_domains.state_of(*numbers) == state


def test_a_filter_counts_as_enforcing_if_it_leads_to_one_that_does() -> None:
    def tree(*names: str) -> ET.Element:
        inner = "".join(f"<filterref filter='{name}'/>" for name in names)
        return ET.fromstring(f"<filter>{inner}</filter>")

    filters = {"ours": tree("other", "no-ip-spoofing"), "round": tree("round"), "open": tree("x")}
    assert libvirt_domains.spoof_proof("clean-traffic", {})
    assert libvirt_domains.spoof_proof("ours", filters)
    assert not libvirt_domains.spoof_proof("round", filters)
    assert not libvirt_domains.spoof_proof("open", filters)
    assert not libvirt_domains.spoof_proof("", {})


def test_a_tags_xml_is_read_back_as_it_was() -> None:
    tag = {"scope": 'a"<b>', "update-domain": "0", "name": "", "address": "::1"}
    inner = libvirt_domains.tag_xml(tag).replace("<machine", "<machine xmlns='%s'")
    domain = ET.fromstring(f"<d><metadata>{inner % libvirt_domains.MACHINE}</metadata></d>")
    assert libvirt_domains.tag_of(domain) == tag
