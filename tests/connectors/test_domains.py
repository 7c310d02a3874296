"""Libvirt's hosts: domains by the program, beside libvirt's driver for tests, and surveys."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import forked
import patience
from builders import NOW
from connectors import hypervisor
from forewarn.clock import ManualClock
from forewarn.connectors.libvirt import facts
from forewarn.connectors.libvirt.connector import PROGRAM
from forewarn.connectors.libvirt.facts import DomainState
from forewarn.connectors.libvirt.program import NO_LIBVIRT
from forewarn.connectors.libvirt.surveys import ANSWER_SECONDS, LibvirtSurveys
from forewarn.connectors.port import Unanswered
from leftovers import alive
from stories import lines_beside

UUID = "6695eb01-f6a4-8304-79aa-97f2502e193f"
"""That of the test driver's domain."""

DRIVEN = str(Path(__file__).with_name("driven.py"))

real = pytest.mark.skipif(
    not hypervisor.has_libvirt(), reason=f"{hypervisor.PYTHON} has no libvirt module"
)

NODE = Path(__file__).with_name("node.xml")
"""A host for the test driver, with three domains."""


def run(*arguments: str, given: str = "") -> dict[str, Any]:
    """Return what the program's last line says."""
    argv = [hypervisor.PYTHON, "-I", PROGRAM, *arguments]
    done = forked.completed(argv, input=given, timeout=patience.SECONDS)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (1 if "error" in told else 0)
    assert not done.stderr
    return told


@real
def test_a_list_has_each_domain_with_its_tag_and_addresses() -> None:
    (host,) = run("list", f"test://{NODE}")["hosts"]
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


def test_a_python_without_the_library_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    argv = [bare / "bin" / "python", "-I", PROGRAM, "list", "test:///default"]
    done = subprocess.run(argv, check=False, capture_output=True, timeout=patience.SECONDS)
    assert (done.returncode, done.stdout) == (NO_LIBVIRT, b"")


def tagged(*uris: str, domain: str = "web-0", **tag: str | None) -> dict[str, Any]:
    """Return what the program says of a tag that it is to write."""
    fields = {name.replace("_", "-"): value for name, value in tag.items()}
    return run("tag", given=json.dumps({"uris": uris, "domain": domain, "tag": fields}))


@real
def test_a_tag_is_written_where_the_domain_is_defined_and_what_is_not_given_stays(
    tmp_path: Path,
) -> None:
    uri = f"test://{NODE}"
    told = tagged(uri, scope=None, update_domain="1", name=None, address="10.0.0.10")
    expected = {"scope": "web", "update-domain": "1", "name": "", "address": "10.0.0.10"}
    assert (told["uuid"], told["tag"]) == (UUID[:-1] + "0", expected)
    assert tagged(uri, domain="plain", scope="web")["tag"]["scope"] == "web"
    assert "web-7" in tagged(uri, domain="web-7", scope="web")["error"]
    other = tmp_path / "other.xml"
    other.write_text(NODE.read_text("utf-8").replace(f"{UUID[:-1]}0", UUID), "utf-8")
    uris = (uri, f"test://{other}")
    assert UUID in tagged(*uris, scope="web")["error"], "a name of two domains needs a uuid"
    for uuid in (UUID, UUID.upper()):
        told = tagged(*uris, domain=uuid, scope="web")
        assert (told["uuid"], told["tag"]["scope"]) == (UUID, "web")


def surveyed(*steps: tuple[str, ...], uri: str = "test:///default") -> list[dict[str, Any]]:
    """Return what `states` answers to lines, each after a statement about the domain."""
    argv = [hypervisor.PYTHON, "-I", DRIVEN, PROGRAM, uri]
    asked = json.dumps(steps)
    done = forked.completed(argv, input=asked)
    return [json.loads(line) for line in done.stdout.splitlines()]


@real
def test_each_survey_has_the_states_of_all_domains_and_the_tags_that_are_asked_for() -> None:
    asked, expected = zip(*lines_beside(__file__, "surveys.txt"), strict=True)
    found = []
    for answer in surveyed(*(tuple(each.split(" | ")) for each in asked)):
        for one in answer["domains"]:
            assert (one["uuid"], one["name"]) == (UUID, "test")
            told = (one["state"], one["reason"], one["run"], one["tagged"] and "tagged")
            found.append(" ".join(str(fact) for fact in told if fact))
    assert [*found, ""] == [*expected]


@real
def test_a_host_that_does_not_answer_says_why_in_each_survey(tmp_path: Path) -> None:
    uri = f"qemu+unix:///session?socket={tmp_path}/none"
    first, second = surveyed(("", "states"), ("", "states"), uri=uri)
    for told in (first, second, run("list", "test:///default", uri)):
        assert str(tmp_path) in told["error"]


@real
def test_a_connection_that_was_lost_is_an_answer_before_the_next_one() -> None:
    """Otherwise a host that rebooted meanwhile looks as if its domains had been stopped."""
    lost = "libvirt.virConnect.isAlive = lambda _: 0"
    first, second, third = surveyed(("", "states"), (lost, "states"), ("", "states"))
    assert "lost" in second["error"]
    assert first["domains"]
    assert third["domains"]


@real
def test_a_program_that_hangs_at_a_host_ends_with_its_caller(tmp_path: Path) -> None:
    place = tmp_path / "silent"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place))
        silent.listen()
        uri = f"qemu+unix:///session?socket={place}"
        argv = [hypervisor.PYTHON, "-I", PROGRAM, "states", uri]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdin is not None
            process.stdin.write(b"states\n")
            process.stdin.flush()
            connection, _ = silent.accept()
            process.stdin.close()
            try:
                assert process.wait(patience.SECONDS) == 0
            finally:
                process.kill()
                connection.close()


def test_a_state_and_the_reason_of_a_domain_that_is_off_have_names() -> None:
    for state, handed_over, *all_numbers in (
        (DomainState.RUNNING, False, (1, 1)),
        (DomainState.PAUSED, False, (3, 1), (7, 1), (7, 2)),
        (DomainState.PAUSED, True, (3, 2), (3, 11), (3, 12)),
        (DomainState.CRASHED, False, (6, 1), (5, 3)),
    ):
        for numbers in all_numbers:
            assert facts.state_of(*numbers, active=True) == (state, handed_over), numbers
    assert facts.state_of(5, 6, active=False) == (DomainState.OFF, False)
    reasons = [facts.off_reason(*numbers) for numbers in ((5, 6), (5, 1), (5, 99), (6, 1))]
    assert reasons == ["failed", "shutdown", "unknown", "crashed"]


def test_a_filter_counts_as_enforcing_if_it_leads_to_one_that_does() -> None:
    def tree(*names: str) -> ET.Element:
        inner = "".join(f"<filterref filter='{name}'/>" for name in names)
        return ET.fromstring(f"<filter>{inner}</filter>")

    filters = {"ours": tree("other", "no-ip-spoofing"), "round": tree("round"), "open": tree("x")}
    assert facts.spoof_proof("clean-traffic", {})
    assert facts.spoof_proof("ours", filters)
    assert not facts.spoof_proof("round", filters)
    assert not facts.spoof_proof("open", filters)
    assert not facts.spoof_proof("", {})


def test_a_tags_xml_is_read_back_as_it_was() -> None:
    tag = {"scope": 'a"<b>', "update-domain": "0", "name": "", "address": "::1"}
    inner = facts.tag_xml(tag).replace("<machine", "<machine xmlns='%s'")
    domain = ET.fromstring(f"<d><metadata>{inner % facts.TAG_URI}</metadata></d>")
    assert facts.tag_in(domain) == tag


# Programs that are kept open for surveys: they answer, hang, die and talk nonsense.

STAND_IN = """#!{python}
# A Python that runs no program, but does what the host's URI says.
import json, os, subprocess, sys
for line in sys.stdin:
    what = sys.argv[4].removeprefix("x:///")
    if what == "answers":
        domain = {{"uuid": str(os.getpid()), "name": line.strip(), "state": "running"}}
        print(json.dumps({{"domains": [domain]}}), flush=True)
    elif what == "is-away":
        print(json.dumps({{"error": f"no route ({{os.getpid()}})"}}), flush=True)
    elif what == "hangs":
        with open({folder!r} + "/pids", "w") as pids:
            pids.write(f"{{os.getpid()}} {{subprocess.Popen(['sleep', '600']).pid}}")
            pids.flush()
        while True:
            sys.stdin.readline()
    elif what == "says-nonsense":
        print('{{"domains": [1]}}', flush=True)
    else:
        sys.exit(int(what))
"""


class Kept:
    """Surveys, and why one fails; their programs end with the story, which it plays."""

    def __init__(self, surveys: LibvirtSurveys) -> None:
        self.surveys = surveys
        self.survey = surveys.survey

    async def why(self, host: str) -> str:
        """Return why a host does not answer."""
        with pytest.raises(Unanswered) as unanswered:
            await self.survey(host)
        return str(unanswered.value)

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await story()
            finally:
                await self.surveys.close()

        asyncio.run(run())


CLOCK = ManualClock(NOW)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path)))
    python.chmod(0o755)
    names = ("answers", "is-away", "hangs", "says-nonsense", "3", "12")
    uris = {name: f"x:///{name}" for name in names}
    return Kept(LibvirtSurveys(uris, str(python), os.environ, CLOCK))


async def test_a_program_is_kept_from_one_survey_to_the_next(kept: Kept) -> None:
    (first,) = await kept.survey("answers")
    (second,) = await kept.survey("answers", ["A", "B"])
    assert (first.name, second.name) == ("states", "states A B")
    assert first.uuid == second.uuid
    assert await kept.why("is-away") == await kept.why("is-away")


async def test_a_program_that_ends_is_started_again(kept: Kept) -> None:
    for _ in range(2):
        assert "3" in await kept.why("3")
        assert "no module libvirt" in await kept.why("12")


async def test_a_program_that_is_killed_between_two_surveys_is_a_host_that_was_lost(
    kept: Kept,
) -> None:
    (found,) = await kept.survey("answers")
    os.kill(int(found.uuid), 9)
    await patience.reached(kept.surveys._running["answers"].over.is_set)
    assert "-9" in await kept.why("answers")
    (again,) = await kept.survey("answers")
    assert again.uuid != found.uuid


async def test_what_cannot_be_read_or_run_is_a_host_that_does_not_answer(kept: Kept) -> None:
    assert "invalid" in await kept.why("says-nonsense")
    assert not kept.surveys._running
    nowhere = Kept(LibvirtSurveys({"h0": "x:///"}, "/nonexistent/python", {}, CLOCK))
    assert "/nonexistent/python" in await nowhere.why("h0")


@pytest.mark.parametrize("how", ["late", "closed"])
async def test_a_program_that_hangs_is_killed_with_all_that_it_began(
    kept: Kept, tmp_path: Path, how: str
) -> None:
    asked = asyncio.create_task(kept.why("hangs"))
    pids = tmp_path / "pids"
    both = await patience.reached(lambda: pids.exists() and pids.read_text().split())
    assert await kept.survey("answers"), "no other host waits for it"
    if how == "late":
        CLOCK.advance(timedelta(seconds=ANSWER_SECONDS))
    else:
        await kept.surveys.close()
    assert await asked
    await patience.reached(lambda: not any(map(alive, map(int, both))))


@real
async def test_libvirts_own_test_driver_is_surveyed() -> None:
    surveys = LibvirtSurveys({"lab": "test:///default"}, hypervisor.PYTHON, os.environ, CLOCK)
    (found,) = await surveys.survey("lab")
    assert (found.name, found.state, found.run) == ("test", "running", 1)
    await surveys.close()
