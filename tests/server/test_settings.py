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
from stories import play, stories_beside


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


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({"uri": "qemu:///system"}, ["cat"]),
        ({"uri": "qemu+unix:///session?socket=/run/x"}, ["cat"]),
        ({"uri": "qemu+ssh://root@h1:2222/system"}, ["ssh", "-p", "2222", "root@h1", "cat"]),
        ({"uri": "qemu+tls://h1/system"}, []),
        ({"uri": "qemu+tls://h1/system", "boot_id": ("boot-id", "h1")}, ["boot-id", "h1"]),
    ],
)
def test_a_boot_id_is_asked_for_by_ssh_or_by_a_command(
    host: dict[str, Any], expected: list[str]
) -> None:
    command = LibvirtHost(name="h1", **host).boot_id_command
    assert [word for word in expected if word not in command] == []
    assert command[:1] == tuple(expected[:1])


def test_the_hosts_of_the_fleet_are_the_connectors_and_those_named_beside_them(
    tmp_path: Path, home: dict[str, str]
) -> None:
    connector = """
        [connector.libvirt]
        python = "/usr/bin/python3"
        [[connector.libvirt.host]]
        name = "h1"
        uri = "qemu+ssh://h1/system"
    """
    own = load(tmp_path, f"{connector}[fleet.libvirt]\nsync = true\n", home)
    assert own.hypervisors == {"h1": "qemu+ssh://h1/system"}
    assert own.libvirt_python == "/usr/bin/python3"
    more = '[fleet.libvirt]\npython = "/opt/python"\nuris = { h2 = "x:///" }\n'
    both = load(tmp_path, connector + more, home)
    assert both.hypervisors == {"h1": "qemu+ssh://h1/system", "h2": "x:///"}
    assert both.libvirt_python == "/opt/python"
    many = ", ".join(f'h{n} = "x:///{n}"' for n in range(101))
    assert "101" in refusal(tmp_path, f"[fleet.libvirt]\nsync = true\nuris = {{ {many} }}\n", home)


def test_what_the_environment_mends_is_no_mistake_and_what_only_both_break_names_both(
    tmp_path: Path, home: dict[str, str]
) -> None:
    off = "[operator]\nsocket = 'off'\n"
    mended = load(tmp_path, off, {**home, "FOREWARN_SET_OPERATOR__LISTEN": "127.0.0.1:8172"})
    assert mended.operator.listen == "127.0.0.1:8172"
    listening = "[operator]\nlisten = '127.0.0.1:8172'\n"
    broken = {
        **home,
        "FOREWARN_SET_OPERATOR__LISTEN": "",
        "FOREWARN_SET_OPERATOR__SOCKET": "off",
    }
    told = refusal(tmp_path, listening, broken)
    assert told.startswith("FOREWARN_SET_OPERATOR__SOCKET: operator.listen: ")


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone.toml: .*No such file"):
        settings.load(tmp_path / "gone.toml", {})
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (files.MAX_FILE_BYTES + 1))
    with pytest.raises(SettingsError, match="1048576 bytes"):
        settings.load(large, {})


def test_the_environment_overrides_the_file_key_by_key(
    tmp_path: Path, home: dict[str, str]
) -> None:
    loaded = load(
        tmp_path,
        "[guest]\nhead_seconds = 1\nbody_seconds = 2\n[log]\nlevel = 'error'\n",
        {
            **home,
            "FOREWARN_SET_GUEST__HEAD_SECONDS": "3.5",
            "FOREWARN_SET_GUEST__LISTENER": '[{address = "::1", port = 81}]',
            "FOREWARN_SET_GUEST__POST_WITHOUT_HEADER": "never",
            "FOREWARN_SET_LOG__FORMAT": "json",
            "FOREWARN_SET_OPERATOR__HOSTS": '["ops.example"]',
        },
    )
    assert (loaded.guest.head_seconds, loaded.guest.body_seconds) == (3.5, 2.0)
    assert loaded.guest.listener == (settings.Listener(address="::1", port=81),)
    assert loaded.guest.post_without_header == "never"
    assert (loaded.log.format, loaded.log.level) == ("json", "error")
    assert loaded.operator.hosts == ("ops.example",)


def test_text_from_the_environment_stays_text(home: dict[str, str]) -> None:
    loaded = settings.load(None, {**home, "FOREWARN_SET_STORE__PATH": "/srv/true"})
    assert loaded.store.path == "/srv/true"
    assert settings.load(None, {**home, "FOREWARN_SET_STORE__PATH": "/1"}).store.path == "/1"


def test_everything_is_beside_the_database_unless_it_is_said_otherwise(
    tmp_path: Path, home: dict[str, str]
) -> None:
    loaded = load(tmp_path, "[store]\npath = 'data/my.db'\n", home)
    assert loaded.store.path == str(tmp_path / "data" / "my.db")
    assert loaded.operator.socket == str(tmp_path / "data" / "operator.sock")
    assert loaded.operator.token_file == str(tmp_path / "data" / "operator.token")
    other = load(tmp_path, "[operator]\nsocket = 'x.sock'\ntoken_file = '/run/t'\n", home)
    assert other.operator.socket == str(tmp_path / "x.sock")
    assert other.operator.token_file == "/run/t"
    assert other.store.path == str(tmp_path / "state" / "forewarn.db")


def test_a_switched_off_socket_stays_off(tmp_path: Path, home: dict[str, str]) -> None:
    text = "[operator]\nsocket = 'off'\nlisten = '[::1]:8172'\n"
    assert load(tmp_path, text, home).operator.socket == files.OFF


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
