"""The journal: what was acknowledged is there, whatever was cut."""

import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from agent.bench import Bench, command, event, rule, service
from forewarn.agent.journal import NAME, Journal, JournalUnusable
from forewarn.agent.records import Booted, Fact, Kept

WRITER = """
import sys
from pathlib import Path
from forewarn.agent.journal import Journal
from forewarn.agent.records import Booted, Kept

journal = Journal(Path(sys.argv[1]))
number = len(journal.records) and int(journal.records[-1].boot)
while True:
    number += 1
    if number % 7 == 0:
        journal.shorten(Kept(boot=str(number), cases=[], effects=[]))
    else:
        journal.append(Booted(boot=str(number)))
    print(number, flush=True)
"""


def lived() -> list[Fact]:
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


def written(folder: Path, records: list[Fact]) -> bytes:
    journal = Journal(folder)
    for record in records:
        journal.append(record)
    journal.close()
    return (folder / NAME).read_bytes()


def read(folder: Path) -> list[Fact]:
    journal = Journal(folder)
    journal.close()
    return list(journal.records)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    records = lived()
    written(tmp_path, records)
    assert read(tmp_path) == records
    assert len(records) > 10


def test_a_journal_cut_anywhere_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    records = lived()
    whole = written(tmp_path, records)
    for length in range(len(whole) + 1):
        (tmp_path / NAME).write_bytes(whole[:length])
        count = whole[:length].count(b"\n")
        assert read(tmp_path) == records[:count]
        assert (tmp_path / NAME).read_bytes() == whole[: whole.rfind(b"\n", 0, length) + 1]


def test_what_follows_a_torn_line_is_written_where_it_began(tmp_path: Path) -> None:
    records = lived()
    whole = written(tmp_path, records)
    (tmp_path / NAME).write_bytes(whole[:-5])
    journal = Journal(tmp_path)
    journal.append(records[-1])
    journal.close()
    assert (tmp_path / NAME).read_bytes() == whole


def test_a_last_line_whose_middle_never_came_to_the_disk_is_torn_too(tmp_path: Path) -> None:
    records = lived()
    whole = written(tmp_path, records)
    (tmp_path / NAME).write_bytes(whole[:-9] + b"\0" * 8 + b"\n")
    assert read(tmp_path) == records[:-1]


def test_damage_before_the_end_is_refused_by_its_line(tmp_path: Path) -> None:
    whole = bytearray(written(tmp_path, lived()))
    whole[whole.index(b"\n") + 20] ^= 1
    (tmp_path / NAME).write_bytes(whole)
    with pytest.raises(JournalUnusable, match=r"journal is damaged in line 2 of \d+: look which"):
        Journal(tmp_path)


def test_a_record_of_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    whole = written(tmp_path, [Booted(boot="a")])
    body = b'{"record":"dreamt"}'
    other = whole + b"%08x %s\n" % (zlib.crc32(body), body)
    (tmp_path / NAME).write_bytes(other)
    with pytest.raises(JournalUnusable, match="a record in line 2 that this version does not know"):
        Journal(tmp_path)
    assert (tmp_path / NAME).read_bytes() == other


def test_a_journal_made_short_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for record in lived()[:6]:
        journal.append(record)
    kept = Kept(boot="b", cases=[], effects=[])
    journal.shorten(kept)
    assert journal.lines == 1
    journal.append(Booted(boot="c"))
    journal.close()
    assert read(tmp_path) == [kept, Booted(boot="c")]


def test_two_agents_never_share_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(JournalUnusable, match=r"another agent has .*journal.lock: stop that one"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnusable, match="cannot be used: Not a directory"):
        Journal(tmp_path / "file" / "below")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(Booted(boot="a"))
    mine = journal._file
    journal._file = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(JournalUnusable, match="cannot be written: No space left on device"):
        journal.append(Booted(boot="b"))
    os.close(journal._file)
    journal._file = mine
    journal.append(Booted(boot="c"))
    journal.close()
    assert read(tmp_path) == [Booted(boot="a"), Booted(boot="c")]


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
        assert isinstance(last, Booted | Kept)
        assert int(last.boot) in {highest, highest + 1}  # one more may be unsaid
