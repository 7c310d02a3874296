"""The file of what a relay knows: whole or not there, and never another one's."""

import os
import tempfile
from pathlib import Path

import pytest

import forked
from forewarn.maintenance.model import Changes
from forewarn.relay import cache
from forewarn.relay.cache import HostDocuments, StateFile, StateUnusable
from guest import room


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


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(held())
    (tmp_path / f"{cache.FILE_NAME}.new").write_bytes(b"half of it")  # which a kill left
    assert StateFile(tmp_path).read() == file.read()
    file.write(held(7))
    found = file.read()
    assert found is not None
    assert found[0] == held(7)


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
file.write(HostDocuments(host="h1", etag="e1"))
file.remove()
"""


def test_what_was_written_or_removed_stays_so_after_a_power_cut(tmp_path: Path) -> None:
    """Guests have read it, and are not to read again what was before."""
    ran = forked.run(["-c", SYNCED, str(tmp_path)])
    assert ran.stdout.split() == [f"{cache.FILE_NAME}.new", "state", "state"], ran.stderr


def test_a_file_that_is_not_whole_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(held())
    path = tmp_path / cache.FILE_NAME
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at])
        with pytest.raises(StateUnusable):
            file.read()
    for damaged in (whole + whole, whole.replace(b"web-0", b"web-\xff"), b"[" * 10_000):
        path.write_bytes(damaged)
        with pytest.raises(StateUnusable):
            file.read()


def test_a_file_of_another_release_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(held())
    path = tmp_path / cache.FILE_NAME
    other = b'"format":%d' % (cache.FORMAT + 1)
    later = path.read_bytes().replace(b'"format":%d' % cache.FORMAT, other, 1)
    path.write_bytes(later)
    with pytest.raises(StateUnusable, match="release"):
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
