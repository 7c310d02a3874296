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


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        ("[guest]\nhead_second = 3\n", "guest", "did you mean 'head_seconds'"),
        ("[stroe]\n", "", "did you mean 'store'"),
        ("[[guest.listener]]\n[[guest.listener]]\nhost = '::1'\n", "guest.listener[1]", "port"),
        ("[history]\nzoo = 3\n", "history", "retention_days"),
        ("[history]\nretention_days = '90d'\n", "history.retention_days", "`float`"),
        ("[history]\nretention_days = 0\n", "history.retention_days", "> 0.0"),
        ("[[guest.listener]]\nport = 70000\n", "guest.listener[0].port", "<= 65535"),
        ("[log]\nformat = 'xml'\n", "log.format", "'auto', 'console', 'json'"),
        ("guest = 3\n", "guest", "`object`"),
        ("[guest.listener]\nport = 1\n", "guest.listener", "[[guest.listener]]"),
        ("[guest]\nhead_seconds = -1\n", "guest.head_seconds", "2147483648"),
        ("[[guest.listener]]\naddress = 'eth0'\n", "guest.listener[0].address", "'eth0'"),
        (
            "[[guest.listener]]\naddress = '169.254.169.254'\ndefault_vm = 'a'\n",
            "guest.listener[0].default_vm",
            "loopback",
        ),
        ("[fleet.libvirt]\nsync = true\n", "fleet.libvirt.uris", "there are 0"),
        ("[relay]\nlisten = '127.0.0.1:0'\n[clock]\nscale = 2\n", "relay.listen", "real time"),
        ("[fleet.libvirt]\nuris = { h1 = 'h1' }\n", "fleet.libvirt.uris", "'h1'"),
        ("[fleet.libvirt]\nuris = { '' = 'x:///' }\n", "fleet.libvirt.uris", "''"),
        ("[operator]\nlisten = 'localhost:80'\n", "operator.listen", "'[::1]:8172'"),
        ("[operator]\nsocket = 'off'\n", "operator.listen", "required"),
        ("[operator]\nlisten = '0.0.0.0:8172'\n", "operator.listen", "tls_certificate"),
        ("[operator]\nlisten = '[2001:db8::1]:8172'\n", "operator.listen", "insecure"),
        ("[operator]\nhosts = ['https://ops.example/page']\n", "operator.hosts", "https://ops"),
        ("[operator]\nhosts = ['ftp://ops.example']\n", "operator.hosts", "https://ops"),
        ("[operator]\nhosts = ['https://ops.example:443']\n", "operator.hosts", "https://ops"),
        ("[operator]\nhosts = ['ops.example:8172']\n", "operator.hosts", "without a port"),
        ("[operator]\nhosts = ['[::1]']\n", "operator.hosts", "without a port"),
        ("[[guest.listener]]\nname = 'Blue'\n", "guest.listener[0].name", "lower-case"),
        (
            "[[guest.listener]]\ntrusted_proxies = ['192.0.2.7/24']\nproxy_secret_files = ['a']\n",
            "guest.listener[0].trusted_proxies",
            "192.0.2.7/24 has host bits set",
        ),
        (
            "[[guest.listener]]\ntrusted_proxies = ['192.0.2.7']\n",
            "guest.listener[0].proxy_secret_files",
            "missing",
        ),
        (
            (
                "[[guest.listener]]\nproxy_secret_files = ['a', 'b', 'c', 'd', 'e']\n"
                "trusted_proxies = ['192.0.2.7']\n"
            ),
            "guest.listener[0].proxy_secret_files",
            "at most 4",
        ),
        (
            "[[guest.listener]]\nproxy_secret_files = ['']\ntrusted_proxies = ['192.0.2.7']\n",
            "guest.listener[0].proxy_secret_files",
            "path",
        ),
        (
            "[[guest.listener]]\nproxy_without_header = true\n",
            "guest.listener[0].proxy_without_header",
            "trusted_proxies",
        ),
        ("[guest\n", "", "TOML"),
    ],
)
def test_a_mistake_in_the_file_is_refused_with_its_place_and_what_to_write(
    tmp_path: Path, home: dict[str, str], text: str, place: str, fact: str
) -> None:
    told = refusal(tmp_path, text, home)
    assert told.startswith(f"/forewarn.toml: {place}: " if place else "/forewarn.toml: ")
    assert fact in told


@pytest.mark.parametrize(
    ("host", "place", "fact"),
    [
        ("name = 'h1'", "host[0]", "`uri`"),
        ("name = ''\nuri = 'qemu:///system'", "host[0].name", ">= 1"),
        ("name = 'h\\u001b'\nuri = 'qemu:///system'".replace("'", '"'), "host[0].name", "printed"),
        ("name = 'h1'\nuri = 'h1'", "host[0].uri", "qemu+ssh://"),
        ("name = 'h1'\nuri = 'qemu+ssh://[h1/system'", "host[0].uri", "invalid URI"),
        ("name = 'h1'\nuri = 'qemu+ssh://h1:x/system'", "host[0].uri", "invalid URI"),
        ("name = 'h1'\nuri = 'qemu:///system'\nmigrate_uri = 'h1'", "host[0].migrate_uri", "tcp:"),
        ("name = 'h1'\nuri = 'qemu:///system'\nreboot = 'x'", "host[0].reboot", "`array`"),
    ],
)
def test_a_host_that_libvirt_could_not_open_is_refused(
    tmp_path: Path, home: dict[str, str], host: str, place: str, fact: str
) -> None:
    told = refusal(tmp_path, f"[[connector.libvirt.host]]\n{host}", home)
    assert told.startswith(f"/forewarn.toml: connector.libvirt.{place}: ")
    assert fact in told


@pytest.mark.parametrize("twice", ["name", "uri"])
def test_two_hosts_of_one_name_or_uri_are_refused(
    tmp_path: Path, home: dict[str, str], twice: str
) -> None:
    one = {"name": "h1", "uri": "qemu+ssh://h1/system"}
    other = {"name": "h2", "uri": "qemu+ssh://h2/system", twice: one[twice]}
    tables = [
        "[[connector.libvirt.host]]\n" + "\n".join(f"{key} = '{each[key]}'" for key in each)
        for each in (one, other)
    ]
    told = refusal(tmp_path, "\n".join(tables), home)
    assert told.startswith("/forewarn.toml: connector.libvirt.host: ")


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


@pytest.mark.parametrize(
    ("variable", "text", "place", "fact"),
    [
        ("GUEST__HEAD_SECOND", "3", "guest", "did you mean 'head_seconds'"),
        ("GUEST__HEAD_SECONDS", "soon", "guest.head_seconds", "`float`"),
        ("GUEST", "3", "guest", "`object`"),
        ("GUEST__LISTENER__PORT", "3", "guest.listener", "`array`"),
        ("LOG__LEVEL__X", "3", "log.level", "'info'"),
    ],
)
def test_a_mistake_in_the_environment_is_refused_by_its_variable(
    home: dict[str, str], variable: str, text: str, place: str, fact: str
) -> None:
    name = f"FOREWARN_SET_{variable}"
    with pytest.raises(SettingsError) as refused:
        settings.load(None, {**home, name: text})
    assert str(refused.value).startswith(f"{name}: {place}: ")
    assert fact in str(refused.value)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535))],
)
def test_an_address_with_a_port_is_taken_apart(text: str, expected: tuple[str, int]) -> None:
    assert files.split_address(text) == expected


@pytest.mark.parametrize("text", ["", ":80", "::1:80", "[127.0.0.1]:80", "1.2.3.4", "1.2.3.4:-1"])
def test_what_is_no_address_with_a_port_is_refused(text: str) -> None:
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
