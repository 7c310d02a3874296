"""Settings: what is refused says where and what was expected; what is given is found."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from reference import each_setting

from forewarn import settings as files
from forewarn.connectors.settings import LibvirtHost
from forewarn.server import settings
from forewarn.server.guest.limits import Limits
from forewarn.settings import SettingsError
from stories import listed, play, split, stories_beside


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose folders are the test's own."""
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "STATE_DIRECTORY": str(tmp_path / "state"),
    }


def load(folder: Path, text: str, environment: dict[str, str]) -> settings.Settings:
    path = folder / "forewarn.toml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path, environment)


def refusal(folder: Path, text: str, environment: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as refused:
        load(folder, text, environment)
    told = str(refused.value)
    assert "\n" not in told
    return told.replace(str(folder), "")


def test_a_mistake_is_refused_with_its_place_and_what_to_write(
    tmp_path: Path, home: dict[str, str]
) -> None:
    ((rows,),) = (each.values for each in stories_beside(__file__, "mistakes.txt"))

    def refused(row: str) -> None:
        if not row or row.startswith("#"):
            return
        written, _, told = row.partition(" -> ")
        place, _, fact = told.partition("| ")
        variable, _, value = written.partition(" = ")
        if variable.startswith("FOREWARN_"):
            found = refusal(tmp_path, "", home | {variable: value})
        else:
            variable = "/forewarn.toml"
            found = refusal(tmp_path, written.replace(" ; ", "\n"), home)
        where = f"{place.strip()}: " if place else ""
        assert found.startswith(f"{variable}: {where}"), found
        assert fact in found

    assert play("mistakes.txt", rows, refused) > 50


class Given:
    """A story so far: the file, and the environment."""

    def __init__(self, folder: Path, home: dict[str, str]) -> None:
        self.folder, self.environment = folder, home
        self.text = ""

    def carry_out(self, row: str) -> None:
        line, _, follows = row.partition(" ->")
        verb, words, options = split(line)
        if verb == "boot-id":
            boot_id = tuple(listed(options.pop("boot_id", "")))
            self.compare_boot_id(LibvirtHost(name="h1", boot_id=boot_id, **options), follows)
        elif verb:
            getattr(self, f"{verb}_")(*words)

    def compare_boot_id(self, host: LibvirtHost, follows: str) -> None:
        expected, command = follows.split(), host.boot_id_command
        assert [word for word in expected if word not in command] == []
        assert command[:1] == tuple(expected[:1])

    def file_(self, text: str) -> None:
        self.text = text.replace(" ; ", "\n")

    def given_(self, name: str, value: str) -> None:
        self.environment[name] = value

    def is_(self, place: str, expected: str) -> None:
        found: Any = load(self.folder, self.text, self.environment)
        for step in place.split("."):
            found = found[int(step)] if step.isdecimal() else getattr(found, step)
        assert str(found) == expected.replace("FOLDER", str(self.folder))

    def refused_(self, words: str) -> None:
        assert refusal(self.folder, self.text, self.environment).startswith(words)


@pytest.mark.parametrize("rows", stories_beside(__file__, "settings.txt"))
def test_what_is_given_is_found(
    tmp_path: Path, home: dict[str, str], rows: list[tuple[int, str]]
) -> None:
    assert play("settings.txt", rows, Given(tmp_path, home).carry_out)


def test_more_hosts_than_one_service_watches_are_refused(
    tmp_path: Path, home: dict[str, str]
) -> None:
    many = ", ".join(f'h{n} = "x:///{n}"' for n in range(101))
    assert "101" in refusal(tmp_path, f"[fleet.libvirt]\nsync = true\nuris = {{ {many} }}\n", home)


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone.toml: .*No such file"):
        settings.load(tmp_path / "gone.toml", {})
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (files.MAX_FILE_BYTES + 1))
    with pytest.raises(SettingsError, match="1048576 bytes"):
        settings.load(large, {})


def test_the_file_is_found_by_variable_then_for_the_user(
    tmp_path: Path, home: dict[str, str]
) -> None:
    own = tmp_path / "config" / "forewarn" / "forewarn.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[clock]\nscale = 2\n", encoding="utf-8")
    assert files.find(home, settings.CONFIG_VARIABLE, settings.CONFIG_NAME) == own
    assert settings.load(None, home).clock.scale == 2
    named = tmp_path / "named.toml"
    named.write_text("[clock]\nscale = 3\n", encoding="utf-8")
    assert settings.load(None, {**home, "FOREWARN_CONFIG": str(named)}).clock.scale == 3


def test_a_folder_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, home: dict[str, str]
) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        settings.load(None, {**home, "XDG_CONFIG_HOME": str(tmp_path / ("x" * 300))})


def test_the_state_folder_is_systemds_if_it_gives_one(tmp_path: Path) -> None:
    given = {"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": str(tmp_path)}
    assert files.state_folder(given) == Path("/var/lib/a")


def test_an_address_with_a_port_is_taken_apart_and_anything_else_refused() -> None:
    assert files.split_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert files.split_address("[::1]:65535") == ("::1", 65535)
    for text in ("", ":80", "::1:80", "[127.0.0.1]:80", "1.2.3.4", "1.2.3.4:-1"):
        with pytest.raises(ValueError, match="invalid address"):
            files.split_address(text)


def test_every_limit_of_the_guest_plane_is_a_setting() -> None:
    known = dict(each_setting(settings.Settings))
    for field in msgspec.structs.fields(Limits):
        assert known[f"guest.{field.encode_name}"] == field.default


def test_the_packaged_file_says_the_defaults_in_comments(home: dict[str, str]) -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "packaging" / "forewarn.toml").read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if line and not line.startswith("#")]
    said = "\n".join(
        line.removeprefix("#") for line in text.splitlines() if not line.startswith(("# ", "#:"))
    )
    folder = Path(home["STATE_DIRECTORY"])
    folder.mkdir()
    assert plain(load(folder, said, home)) == plain(settings.load(None, home))
    for path, _ in each_setting(settings.Settings):
        assert f"#{path.rpartition('.')[2]} = " in text, path


def plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
