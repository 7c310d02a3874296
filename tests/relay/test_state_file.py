"""The file of what a relay knows: whole or not there, and never another one's."""

import os
import tempfile
from pathlib import Path

import pytest

import forked
from forewarn.maintenance.model import Changes
from forewarn.relay import cache
from forewarn.relay.cache import HostDocuments, StateFile, StateUnusable
from forewarn.server.relay_feed import News
from guest import room


def held(incarnation: int = 2, position: str = "e.5") -> HostDocuments:
    kept = room.Documents()
    scope = room.scope("web", incarnation=incarnation)
    kept.learn(Changes(scopes=(scope,), operations=(room.operation(room.event()),)))
    whole = kept.whole("web")
    return HostDocuments(
        host="h1",
        position=position,
        machines={each.key: each for each in room.MACHINES[:2]},
        documents={"web": whole},
    )


def test_what_was_written_is_read_with_the_time_until_which_it_was_true(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    assert file.read() is None
    file.write(held())
    file.touch(1_000_000.0)
    assert file.read() == (held(), 1_000_000.0)
    assert (tmp_path / "state" / cache.FILE_NAME).stat().st_mode & 0o777 == 0o600
    file.write(held(3))
    found = file.read()
    assert found is not None
    assert found[0] == held(3)
    assert [each.name for each in (tmp_path / "state").iterdir()] == [cache.FILE_NAME]
    file.remove()
    file.remove()
    assert file.read() is None


def change(number: int) -> tuple[HostDocuments, News]:
    known = held(number, f"e.{number}")
    return known, News(
        host="h1",
        position=known.position,
        scopes=tuple(known.documents.values()),
        rules=known.rules,
    )


def test_a_change_is_added_to_the_file_until_there_are_many(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    path = tmp_path / cache.FILE_NAME
    file.write(*change(6))
    whole = path.read_bytes()
    for number in range(7, 7 + cache.MAX_CHANGES):
        file.write(*change(number))
        found = StateFile(tmp_path).read()
        assert found is not None
        assert found[0] == held(number, f"e.{number}")
    assert path.read_bytes().startswith(whole)
    file.write(*change(1000))
    assert path.read_bytes().count(b"\n") == 2


def test_what_a_kill_cut_off_was_never_there_and_the_next_change_is_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    path = tmp_path / cache.FILE_NAME
    file.write(held())
    before = path.read_bytes()
    file.write(*change(6))
    whole = path.read_bytes()
    for at in range(len(before), len(whole)):
        path.write_bytes(whole[:at])
        after = StateFile(tmp_path)
        found = after.read()
        assert found is not None
        assert found[0] == held()
        after.write(*change(6))
        found = after.read()
        assert found is not None
        assert found[0] == held(6, "e.6")


def test_a_file_that_another_one_wrote_or_removed_is_replaced(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    path = tmp_path / cache.FILE_NAME
    file.write(held())
    StateFile(tmp_path).write(held(7, "e.999"))
    file.write(*change(6))
    path.unlink()
    file.write(*change(7))
    file.remove()
    file.write(*change(8))
    found = StateFile(tmp_path).read()
    assert found is not None
    assert found[0] == held(8, "e.8")


def test_a_file_that_is_damaged_anywhere_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(held())
    path = tmp_path / cache.FILE_NAME
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at])
        with pytest.raises(StateUnusable):
            file.read()
    file.write(*change(6))
    file.write(*change(7))
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StateUnusable):
            file.read()


def test_a_file_of_another_release_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(held())
    path = tmp_path / cache.FILE_NAME
    later = path.read_bytes().replace(
        b"forewarn-relay %d" % cache.FORMAT,
        b"forewarn-relay %d" % (cache.FORMAT + 1),
        1,
    )
    path.write_bytes(later)
    with pytest.raises(StateUnusable):
        file.read()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        file.write(held())
    file = StateFile(tmp_path)
    file.write(held())
    os.mkfifo(tmp_path / f"{cache.FILE_NAME}.new") if hasattr(os, "mkfifo") else None
    file.write(held(3))  # what another one left there is replaced
    found = file.read()
    assert found is not None
    assert found[0] == held(3)


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
        StateFile(folder).write(held())
        (folder / cache.FILE_NAME).chmod(0o444)
        folder.chmod(0o555)
        ran = forked.run(["-c", READ_BY_NOBODY, made])
    assert ran.stdout.strip() == "unusable", ran.stderr
