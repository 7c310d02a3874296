"""What settings files have in common, and what a process does before it has threads."""

import os
import sys
from pathlib import Path

import pytest

import forked
import patience
from forewarn import settings
from forewarn.agent.settings import AgentSettings, StateSettings
from forewarn.settings import SettingsError

THREADS = """
import enum, sys, threading
from concurrent.futures import ThreadPoolExecutor
import msgspec
from forewarn.settings import prepare_types

sys.setswitchinterval(1e-6)
kinds = []
for number in range(300):
    kind = enum.StrEnum(f"E{number}", ["A", "B"])
    fields = [("one", kind | None, None), ("other", kind | None, None)]
    kinds.append(msgspec.defstruct(f"S{number}", fields))
prepare_types()
for kind in kinds:
    at_once = threading.Barrier(4)

    def decode():
        at_once.wait()
        msgspec.convert({"one": "a", "other": "b"}, kind)

    with ThreadPoolExecutor(4) as threads:
        [threads.submit(decode) for _ in range(4)]
"""


def test_threads_that_decode_one_type_at_once_do_not_end_the_process() -> None:
    """As they do without: msgspec looks at a type when it is first decoded."""
    ended = forked.completed([sys.executable, "-c", THREADS], timeout=patience.SECONDS)
    assert ended.returncode == 0, ended.stderr


def test_the_mark_and_the_line_ends_of_an_editor_on_windows_are_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf[log]\r\nlevel = 'debug'\r\n")
    assert settings.read(tmp_path / "x.toml") == {"log": {"level": "debug"}}


def test_another_encoding_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[log]", encoding="utf-16")
    with pytest.raises(SettingsError, match="UTF-8"):
        settings.read(tmp_path / "x.toml")
    with pytest.raises(SettingsError, match=r"SET_RULE.*UTF-8"):
        settings.overrides({"SET_RULE": os.fsdecode(b"caf\xe9")}, "SET_", AgentSettings)


@pytest.mark.parametrize("value", ["[" * 20_000, "9" * 5_000])
def test_a_value_that_python_cannot_read_is_a_mistake(tmp_path: Path, value: str) -> None:
    (tmp_path / "x.toml").write_text(f"x = {value}")
    with pytest.raises(SettingsError, match="invalid TOML"):
        settings.read(tmp_path / "x.toml")
    assert settings.overrides({"SET_LOG": value}, "SET_", AgentSettings)


def test_a_folder_of_a_user_who_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    given = AgentSettings(state=StateSettings(folder="~nobody9/agent"))
    with pytest.raises(SettingsError, match="'~nobody9/agent'"):
        settings.placed(given, tmp_path)


def test_a_fifo_among_the_settings_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.toml")
    with pytest.raises(SettingsError, match="ordinary file"):
        settings.read(tmp_path / "x.toml")


def test_a_nul_is_refused_before_a_program_is_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(r'run = ["drain\u0000"]', encoding="utf-8")
    with pytest.raises(SettingsError, match="NUL"):
        settings.read(tmp_path / "x.toml")
    with pytest.raises(SettingsError, match=r"SET_RULE.*NUL"):
        settings.overrides({"SET_RULE": r'[{name="\u0000"}]'}, "SET_", AgentSettings)
