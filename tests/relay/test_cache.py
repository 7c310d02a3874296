"""What a relay knows: documents, their age, the file that has them, settings and metrics."""

import os
import re
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import forked
from forewarn.maintenance.model import Changes
from forewarn.relay import cache, relay
from forewarn.relay.cache import DocumentRefused, Freshness, HostDocuments, StateFile, StateUnusable
from forewarn.relay.settings import replica
from forewarn.server.relay_feed import GuestRules, HostDocument, ScopeDocument
from guest import room
from guest.room import EVENTS, get
from house import tree
from relay.running import relayed
from stories import lines_beside, spelled

WEB = ScopeDocument(scope=room.SCOPES[0])
BASTION = ScopeDocument(scope=room.SCOPES[1])
HOST = HostDocument(host="h1", machines=tuple(room.MACHINES), scopes=(WEB, BASTION))


def known() -> HostDocuments:
    return cache.take(None, "e5", HOST)


def test_a_document_is_all_there_is() -> None:
    before = known()
    assert set(before.machines) == {"web-0", "web-1", "bastion"}
    rules = GuestRules(rate_per_second=7)
    smaller = HostDocument(
        host="h1", machines=(room.MACHINES[0],), scopes=(WEB,), rules=rules, awaited=("web-0",)
    )
    after = cache.take(before, "e6", smaller)
    assert (after.etag, after.rules, after.awaited) == ("e6", rules, ("web-0",))
    assert (set(after.machines), set(after.documents)) == ({"web-0"}, {"web"})


@pytest.mark.parametrize(
    ("etag", "told"),
    [
        ("e6", msgspec.structs.replace(HOST, host="h2")),
        ("", HOST),
        ("e" * 201, HOST),
        ("\N{REPLACEMENT CHARACTER}", HOST),
        ("e6", msgspec.structs.replace(HOST, scopes=())),
        ("e6", msgspec.structs.replace(HOST, machines=(room.machine("db", scope="nowhere"),))),
        ("e6", msgspec.structs.replace(HOST, machines=(room.machine("db", "a:b", scope="web"),))),
    ],
)
def test_a_document_that_does_not_fit_is_refused(etag: str, told: HostDocument) -> None:
    with pytest.raises(DocumentRefused):
        cache.take(known(), etag, told)


def test_more_machines_than_any_host_has_are_refused() -> None:
    crowd = tuple(room.machine(f"m{n}", scope="web") for n in range(cache.MAX_MACHINES + 1))
    with pytest.raises(DocumentRefused):
        cache.take(None, "e5", msgspec.structs.replace(HOST, machines=crowd))


VALUES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2))


@given(VALUES, VALUES)
def test_a_difference_leads_from_one_to_other(
    before: dict[str, int], after: dict[str, int]
) -> None:
    changed, gone = cache.difference(before, after)
    assert set(gone) == before.keys() - after.keys()
    assert sorted(changed) == sorted(
        value for key, value in after.items() if before.get(key) != value
    )


# Their age.


START = Freshness(true_until=100.0)


HEARD = START.heard(200.0)


def test_documents_are_true_while_a_replica_holds_the_request_or_until_it_was_heard_last() -> None:
    assert HEARD.age(10_000.0) == HEARD.shown_age(10_000.0) == 0
    # A path that the system found dead may have been so since its last probe.
    assert HEARD.lost(300.0, 250.0, is_dark=True).true_until == 300.0 - cache.DARK_SECONDS
    assert HEARD.lost(300.0, 299.0, is_dark=True).true_until == 299.0
    # A replica that froze has told nothing since it was asked.
    frozen = HEARD.lost(300.0, 230.0, is_dark=False)
    assert frozen.true_until == 230.0
    again = frozen.lost(400.0, 390.0, is_dark=True)
    assert again.true_until == 230.0  # nothing was heard meanwhile


def test_an_age_above_that_of_a_change_of_replicas_is_shown_and_guests_answered_so_long() -> None:
    known = HEARD.lost(200.0, 200.0, is_dark=False)
    assert known.shown_age(200.0 + cache.SHOWN_SECONDS) == 0
    assert known.shown_age(206.9) == 6
    assert known.serves(10_000.0, 0)
    assert known.serves(230.0, 30)
    assert not known.serves(230.1, 30)


def test_a_token_is_revoked_once_it_has_been_refused_for_a_while() -> None:
    known = START.heard(200.0).refused(300.0)
    assert known.age(300.0) == 0
    again = known.refused(304.9)
    assert again.serves(400.0, 0)  # nobody answers meanwhile
    revoked = again.refused(305.0)
    assert not revoked.serves(305.0, 0)
    assert revoked.heard(306.0).serves(306.0, 0)


# The file.


def held(incarnation: int = 2) -> HostDocuments:
    kept = room.DocumentCache()
    scope = room.scope("web", incarnation=incarnation)
    kept.learn(Changes(scopes=(scope,), operations=(room.operation(room.event()),)))
    whole = kept.whole("web")
    return HostDocuments(
        host="h1",
        etag=f"e{incarnation}",
        machines={each.key: each for each in room.MACHINES[:2]},
        documents={"web": whole},
        awaited=("web-1",),
    )


def test_what_was_written_is_read_with_the_time_until_which_it_was_true(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    assert file.read() is None
    file.write(held(), 2_000_000.0)
    assert file.read() == (held(), 2_000_000.0)
    file.touch(1_000_000.0)
    assert file.read() == (held(), 1_000_000.0)
    assert (tmp_path / "state" / cache.FILE_NAME).stat().st_mode & 0o777 == 0o600
    (tmp_path / "state" / f"{cache.FILE_NAME}.new").write_bytes(b"half of it")  # a kill left that
    assert StateFile(tmp_path / "state").read() == file.read()
    file.write(held(3), 1_000_000.0)
    assert (file.read() or [None])[0] == held(3)
    assert [each.name for each in (tmp_path / "state").iterdir()] == [cache.FILE_NAME]
    file.remove()
    file.remove()
    assert file.read() is None


SYNCED = """
import os, pathlib, sys
from forewarn.relay.cache import HostDocuments, StateFile
sync = os.fsync
def note(number):
    print(pathlib.Path(os.readlink(f"/proc/self/fd/{number}")).name)
    sync(number)
os.fsync = note
file = StateFile(pathlib.Path(sys.argv[1]) / "state")
file.lock()
file.write(HostDocuments(host="h1", etag="e1"), 0.0)
file.remove()
"""


def test_what_was_written_or_removed_stays_so_after_a_power_cut(tmp_path: Path) -> None:
    """Guests have read it, and are not to read again what was before."""
    ran = forked.run(["-c", SYNCED, str(tmp_path)])
    assert ran.stdout.split() == [f"{cache.FILE_NAME}.new", "state", "state"], ran.stderr


def test_a_file_that_is_not_whole_or_of_another_release_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(held(), 1_000_000.0)
    path = tmp_path / cache.FILE_NAME
    whole = path.read_bytes()
    damaged = [whole[:at] for at in range(0, len(whole), 7)]
    damaged += [whole + whole, whole.replace(b"web-0", b"web-\xff"), b"[" * 10_000]
    for each in damaged:
        path.write_bytes(each)
        with pytest.raises(StateUnusable):
            file.read()
    formats = (b'"format":%d' % (cache.FORMAT + more) for more in (0, 1))
    path.write_bytes(whole.replace(*formats, 1))
    with pytest.raises(StateUnusable, match="release"):
        file.read()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        file.write(held(), 1_000_000.0)
    file = StateFile(tmp_path)
    file.write(held(), 1_000_000.0)
    os.mkfifo(tmp_path / f"{cache.FILE_NAME}.new") if hasattr(os, "mkfifo") else None
    file.write(held(3), 1_000_000.0)  # what another one left there is replaced
    assert (file.read() or [None])[0] == held(3)


READ_BY_NOBODY = """
import os, pathlib, sys
from forewarn.relay.cache import StateFile, StateUnusable
if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)
try: print(StateFile(pathlib.Path(sys.argv[1])).read())
except StateUnusable: print("unusable")
"""


def test_a_file_that_can_no_longer_be_written_is_not_believed() -> None:
    # It would have been removed when a later change could not be saved, which guests have read.
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders are for its user alone
        folder = Path(made)
        StateFile(folder).write(held(), 1_000_000.0)
        (folder / cache.FILE_NAME).chmod(0o444)
        folder.chmod(0o555)
        ran = forked.run(["-c", READ_BY_NOBODY, made])
    assert ran.stdout.strip() == "unusable", ran.stderr


# Its settings, and its metrics.


def test_an_address_of_a_replica_is_a_url_with_a_port_of_its_own() -> None:
    for told, expected in lines_beside(__file__, "urls.txt"):
        url = spelled(told).decode().strip('"')
        if expected:
            assert str(replica(url)) == expected
        else:
            with pytest.raises(ValueError, match="invalid URL"):
                replica(url)


PAGE = tree.ROOT / "docs" / "reference" / "relay-metrics.md"


def test_each_metric_has_its_heading_and_its_help_and_nothing_else_has() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.+)$", text, re.MULTILINE))
    assert list(sections) == [relay.PREFIX + name for name in relay.FAMILIES]
    for name, help_ in relay.FAMILIES.items():
        assert sections[relay.PREFIX + name].startswith(help_)


async def test_a_relays_metrics_are_read_as_prometheus_reads_them(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (_, running):
        assert await running.status() == 200
        assert await running.status(get(EVENTS, "Expect: 200-ok")) == 417
        text = running.relay.metrics(process=1).decode()
    families = {
        f"{each.name}_total" if each.type == "counter" else each.name: each.samples
        for each in text_string_to_metric_families(text)
    }
    assert set(families) == {relay.PREFIX + name for name in relay.FAMILIES}
    requests = families[f"{relay.PREFIX}guest_requests_total"]
    assert {"resource": "events", "status": "200"} in [each.labels for each in requests]
