"""What packages ship for the relay."""

import re
from pathlib import Path

from forewarn.relay import settings
from house import tree

PACKAGING = tree.ROOT / "packaging"
SETTINGS = (PACKAGING / "relay.toml").read_text(encoding="utf-8")
UNIT = (PACKAGING / "forewarn-relay.service").read_text(encoding="utf-8")
SOCKET = (PACKAGING / "forewarn-relay.socket").read_text(encoding="utf-8")


def loaded(folder: Path, text: str) -> settings.HostRelaySettings:
    path = folder / "relay.toml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path, {"STATE_DIRECTORY": str(folder)})


def test_the_packaged_settings_are_the_defaults_but_for_where_the_service_is(
    tmp_path: Path,
) -> None:
    told = loaded(tmp_path, SETTINGS)
    least = f'[upstream]\nurls = ["{told.upstream.urls[0]}"]\ntoken_file = "/token"\n'
    plain = loaded(tmp_path, least)
    assert (told.guest, told.status, told.state) == (plain.guest, plain.status, plain.state)
    assert told.upstream.token_file.endswith("/relay.token")


def test_every_default_that_the_packaged_settings_show_is_one(tmp_path: Path) -> None:
    shown = re.sub(r"(?m)^#(?=[^\s:])", "", SETTINGS)
    told, plain = loaded(tmp_path, shown), loaded(tmp_path, SETTINGS)
    assert told == plain


def test_the_socket_is_the_address_that_the_relay_listens_at_by_default() -> None:
    (listener,) = settings.RelayGuestSettings().listener
    assert f"ListenStream={listener.address}:{listener.port}\n" in SOCKET


def test_the_unit_hands_over_the_token_that_the_settings_name() -> None:
    (name,) = re.findall(r"(?m)^LoadCredential=(.+):/etc/forewarn/relay.token$", UNIT)
    assert f'"/run/credentials/forewarn-relay.service/{name}"' in SETTINGS
