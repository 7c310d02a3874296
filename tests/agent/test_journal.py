"""The journal: what was acknowledged is there, whatever was cut."""

import contextlib
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent import workplace
from agent.bench import Bench, command, event, rule, service
from forewarn.agent.decider import DocumentSeen
from forewarn.agent.journal import MAX_BYTES, NAME, Journal, JournalError
from forewarn.agent.state import AnyRecord, Checkpoint, MachineBooted

WRITER = """
import sys
from pathlib import Path
from forewarn.agent.journal import Journal
from forewarn.agent.state import MachineBooted, Checkpoint

journal = Journal(Path(sys.argv[1]))
number = len(journal.records) and int(journal.records[-1].boot)
while True:
    number += 1
    if number % 7 == 0:
        journal.append(Checkpoint(boot=str(number), cases=[], effects=[]))
    else:
        journal.append(MachineBooted(boot=str(number)))
    print(number, flush=True)
"""


def lived() -> list[AnyRecord]:
    """Return the records of an event that was prepared for, approved and undone."""
    bench = Bench(rule(service(), command("drain")))
    bench.see(event())
    bench.find("web", active=True)
    for which in ("web", "drain"):
        bench.end(which)
    bench.answer(taken=True)
    bench.see()
    for which in ("drain", "web"):
        bench.end(which)
    return bench.journal


def write(folder: Path, records: list[AnyRecord]) -> None:
    journal = Journal(folder)
    for record in records:
        journal.append(record)
    journal.close()


def read(folder: Path) -> list[AnyRecord]:
    journal = Journal(folder)
    journal.close()
    return list(journal.records)


def change(folder: Path, statement: str, *values: object) -> None:
    """Change the database as no agent does."""
    with contextlib.closing(sqlite3.connect(folder / NAME)) as database, database:
        database.execute(statement, values)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    records = lived()
    write(tmp_path, records)
    assert read(tmp_path) == records
    assert len(records) > 10
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_a_log_that_was_cut_anywhere_is_read_up_to_a_whole_record(tmp_path: Path) -> None:
    """As a lost power supply leaves it: the write-ahead log ends at any byte, or in garbage."""
    records = lived()
    journal = Journal(tmp_path / "whole")
    counts = set()
    for record in records:
        journal.append(record)
    log = (tmp_path / "whole" / f"{NAME}-wal").read_bytes()
    for length in range(0, 1024 * len(records), 509):  # then comes free room
        copy = tmp_path / "copy"
        copy.mkdir()
        shutil.copy(tmp_path / "whole" / NAME, copy)
        (copy / f"{NAME}-wal").write_bytes(log[:length] + b"\xff" * (length % 1021))
        found = read(copy)
        assert found == records[: len(found)]
        counts.add(len(found))
        shutil.rmtree(copy)
    journal.close()
    assert len(counts) > len(records) / 2


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    records = lived()
    write(tmp_path, records)
    change(tmp_path, "VACUUM")  # without the pages that are free
    whole = (tmp_path / NAME).read_bytes()
    refused = 0
    for place in range(100, len(whole), 61):
        changed = bytearray(whole)
        changed[place] ^= 1
        (tmp_path / NAME).write_bytes(changed)
        try:
            assert read(tmp_path) == records  # a byte that means nothing
        except JournalError as error:
            refused += 1
            assert str(tmp_path / NAME) in str(error)
    assert refused > 10


@pytest.mark.parametrize(
    "statement",
    [
        (
            "UPDATE records SET body = (SELECT body FROM records WHERE sequence = 2), checksum = "
            "(SELECT checksum FROM records WHERE sequence = 2) WHERE sequence = 5"
        ),
        "DELETE FROM records WHERE sequence = 3",
    ],
)
def test_a_record_that_was_copied_or_lost_is_noticed(tmp_path: Path, statement: str) -> None:
    write(tmp_path, lived())
    change(tmp_path, statement)
    with pytest.raises(JournalError, match="damaged"):
        Journal(tmp_path)


def test_a_record_of_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    write(tmp_path, [MachineBooted(boot="a")])
    body = msgspec.json.encode({"record": "dreamt"})
    change(tmp_path, "INSERT INTO records VALUES (2, ?, ?)", zlib.crc32(b"2 " + body), body)
    for _ in range(2):
        with pytest.raises(JournalError, match="version"):
            Journal(tmp_path)


def test_what_is_no_database_or_of_another_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [])
    change(tmp_path, "PRAGMA user_version = 2")
    with pytest.raises(JournalError, match="format 2"):
        Journal(tmp_path)
    (tmp_path / NAME).write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="damaged"):
        Journal(tmp_path)


def test_a_journal_made_short_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for record in lived()[:6]:
        journal.append(record)
    checkpoint = Checkpoint(boot="b", cases=[], effects=[])
    journal.append(checkpoint)
    assert journal.length == 1
    journal.append(MachineBooted(boot="c"))
    journal.close()
    assert read(tmp_path) == [checkpoint, MachineBooted(boot="c")]


def test_a_journal_of_large_events_is_shortened_long_before_it_is_too_large(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    daemon = workplace.daemon(journal, rule({"log": {}}, approve="never"))
    stays = event("STAYS")  # so that the agent is never idle
    for number in range(50):
        large = event(f"E{number}", description="x" * 1024 * 1024)
        daemon._handle(DocumentSeen((stays, large), "web-0"))
        while daemon._decider.busy:
            daemon._turn()
    assert not journal.is_long
    journal.close()
    assert (tmp_path / NAME).stat().st_size < MAX_BYTES / 2
    assert len(read(tmp_path)) < 100


def test_two_agents_never_share_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="another agent has") as refused:
        Journal(tmp_path)
    assert refused.value.for_now
    writer = [sys.executable, "-c", WRITER, str(tmp_path)]
    second = subprocess.run(writer, capture_output=True, text=True, check=False)
    assert (second.stdout, "another agent has" in second.stderr) == ("", True)
    journal.append(MachineBooted(boot="a"))
    journal.close()
    assert read(tmp_path) == [MachineBooted(boot="a")]


def test_what_cannot_be_opened_is_refused_and_a_file_only_for_now(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="Not a directory"):
        Journal(tmp_path / "file" / "below")
    (tmp_path / NAME).mkdir()
    with pytest.raises(JournalError, match="unable to open") as refused:
        Journal(tmp_path)
    assert refused.value.for_now


@contextlib.contextmanager
def files_of(most: int) -> Iterator[None]:
    """Limit the size of files, with EFBIG for ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_events_have_room_on_a_disk_that_is_full_meanwhile(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with files_of(max(each.stat().st_size for each in tmp_path.iterdir())):
        for _ in range(100):
            journal.append(*lived())
            journal.append(Checkpoint(boot="b", cases=[], effects=[]))
        journal.append(*lived())
    journal.close()
    assert read(tmp_path) == [Checkpoint(boot="b", cases=[], effects=[]), *lived()]


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(MachineBooted(boot="a"))
    for write_ in (
        lambda: journal.append(MachineBooted(boot="b")),
        lambda: journal.append(Checkpoint(boot="b", cases=[], effects=[])),
    ):
        with files_of(512), pytest.raises(JournalError, match="cannot write"):
            write_()
    assert journal.length == 1
    journal.append(MachineBooted(boot="c"))
    journal.close()
    assert read(tmp_path) == [MachineBooted(boot="a"), MachineBooted(boot="c")]


def test_what_was_acknowledged_survives_a_kill_in_any_moment(tmp_path: Path) -> None:
    highest = 0
    for kill in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(1 + kill * 3):
                highest = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            said = writer.stdout.read().split()
        highest = int(said[-1]) if said else highest
        journal = Journal(tmp_path)
        last = journal.records[-1]
        journal.close()
        assert isinstance(last, MachineBooted | Checkpoint)
        assert int(last.boot) in {highest, highest + 1}  # one more may be unsaid
