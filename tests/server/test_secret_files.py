"""The proxies' secrets and the operators' token: read with care."""

import os
import stat
from pathlib import Path

import pytest

from forewarn.server import secret_files
from forewarn.server.secret_files import SecretUnusable

SECRET = "0123456789abcdef"


def write(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "proxy.secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
def test_a_secret_is_its_files_text_without_the_blanks_around_it(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, f" {SECRET}\n".encode(), mode)
    assert secret_files.shared_secret(path) == SECRET.encode()


def test_a_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    path = write(tmp_path, f"\ufeff{SECRET}\r\n".encode())
    assert secret_files.shared_secret(path) == SECRET.encode()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o602, 0o777])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, SECRET.encode(), mode)
    with pytest.raises(SecretUnusable, match=f"has mode {mode:04o}") as refused:
        secret_files.shared_secret(path)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"0123456789abcde\n\n", b"\xff" * 20])
def test_what_is_no_secret_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SecretUnusable, match="at least 16 bytes") as refused:
        secret_files.shared_secret(write(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match=r"gone cannot be read: No such file"):
        secret_files.shared_secret(tmp_path / "gone")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
def test_a_fifo_is_refused_at_once_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(SecretUnusable, match="ordinary file"):
        secret_files.shared_secret(tmp_path / "fifo")


# The token's file.


def test_the_token_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    before = os.umask(0)
    try:
        first = secret_files.token(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) >= 43
    assert secret_files.token(path) == first
    assert secret_files.token(tmp_path / "other") != first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "token"]


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret_files.token(path)
    path.chmod(0o640)
    with pytest.raises(SecretUnusable, match="0640"):
        secret_files.token(path)


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600])
def test_a_token_that_systemd_hands_on_is_read_with_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    made = secret_files.token(path)
    path.chmod(mode)
    assert secret_files.token(path, str(tmp_path)) == made


@pytest.mark.parametrize("mode", [0o444, 0o460, 0o640 | 0o004])
def test_a_credential_that_anybody_may_read_or_its_group_may_change_is_refused(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "token"
    secret_files.token(path)
    path.chmod(mode)
    with pytest.raises(SecretUnusable, match=f"{mode:04o}"):
        secret_files.token(path, str(tmp_path))


def test_a_file_beside_the_credentials_is_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "token"
    (tmp_path / "credentials").mkdir()
    secret_files.token(path)
    path.chmod(0o440)
    with pytest.raises(SecretUnusable, match="0440"):
        secret_files.token(path, str(tmp_path / "credentials"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_a_credential_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret_files.token(path)
    path.chmod(0o440)
    os.chown(path, 12345, -1)
    with pytest.raises(SecretUnusable, match="0440"):
        secret_files.token(path, str(tmp_path))


@pytest.mark.parametrize("text", ["", "short", "a" * 15, "a" * 20 + "\x00", "ü" * 30])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(SecretUnusable, match="no token"):
        secret_files.token(path)


def test_a_token_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="gone"):
        secret_files.token(tmp_path / "gone" / "token")
