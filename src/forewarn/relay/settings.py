"""The relay's settings: one TOML file, and the environment, which overrides single settings.

Its meaning and the reason for its default are with each field, and in
docs/reference/relay-settings.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from forewarn import settings
from forewarn.client import discovery
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import Listener
from forewarn.settings import OFF, FieldError, FileName, Log, SettingsError

ENVIRONMENT_PREFIX: Final = "FOREWARN_RELAY_SET_"
CONFIG_VARIABLE: Final = "FOREWARN_RELAY_CONFIG"
CONFIG_NAME: Final = "relay.toml"
STATE_NAME: Final = "relay"
"""The relay's folder within the state folder, which it may share with an agent."""

MAX_URLS: Final = 16
"""Addresses of replicas: more than any service has."""

PORT: Final = 8173
"""The port of a URL that has none: the service's `relay.listen` by default."""


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service, as this host's relay reaches it."""

    urls: tuple[str, ...] = ()
    """The relay plane of each replica, such as `https://forewarn-1.example:8173`; all addresses of
    a name are tried. `http://` only to a loopback address, because it would show the token and the
    documents to the network."""
    token_file: FileName = ""
    """The file with this host's token, as `forewarn relay token HOST --output FILE` writes it; mode
    0640 or stricter, and read again when it changes. Required."""
    ca_file: FileName = ""
    """The file with the certificates that signed the replicas', in PEM. `""`: the system's."""
    max_stale_seconds: Annotated[float, msgspec.Meta(ge=0, le=365 * 24 * 3600)] = 0.0
    """The time for which guests are still answered while no replica can be reached, at least 10.
    Then their connections are closed without an answer. 0, the default, is no limit: the events
    that a guest read last stay announced, and no maintenance of this host starts meanwhile."""

    def __post_init__(self) -> None:
        """Refuse addresses that cannot be used, and a host without a proof of its identity."""
        if not 0 < len(self.urls) <= MAX_URLS:
            raise FieldError("urls", f"expected 1 to {MAX_URLS} URLs of replicas")
        for url in self.urls:
            try:
                replica(url)
            except ValueError as error:
                raise FieldError("urls", str(error)) from None
        if not self.token_file:
            raise FieldError("token_file", "required: the service recognizes this host by it")
        if 0 < self.max_stale_seconds < MIN_STALE_SECONDS:
            raise FieldError("max_stale_seconds", f"must be 0, or at least {MIN_STALE_SECONDS:g}")


MIN_STALE_SECONDS: Final = 10.0
"""Less than a change of the replica takes would close guests' connections at each restart."""


class RelayGuestSettings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The guest plane: its listeners, and the limits of each connection."""

    listener: tuple[Listener, ...] = (Listener(address="169.254.169.254", port=80),)
    """By default one, where guests ask without any setting of their own."""


class RelayStatusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The port for probes and metrics: `/readyz`, `/healthz`, `/status` and `/metrics`."""

    listen: str = "127.0.0.1:8174"
    """An IP address and a port, or `"off"`. By default only this host reaches it. While another
    program has the port, the relay serves its guests without it, and tries again each second."""

    def __post_init__(self) -> None:
        """Refuse an invalid address."""
        if self.listen != OFF:
            settings.check_address("listen", self.listen)


class RelayStateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The relay's files on the disk."""

    folder: FileName = ""
    """The folder with the latest documents, from which the relay answers after a restart while no
    replica can be reached. `""` is `relay` in the state folder. A relative path starts at the
    folder of the settings file."""


class HostRelaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    upstream: UpstreamSettings
    guest: RelayGuestSettings = RelayGuestSettings()
    status: RelayStatusSettings = RelayStatusSettings()
    state: RelayStateSettings = RelayStateSettings()
    log: Log = Log()


class ReplicaAddress(msgspec.Struct, frozen=True):
    """The address of a replica's relay plane."""

    tls: bool
    host: str
    """A name or an IP address, an IPv6 one without its brackets."""
    port: int

    def __str__(self) -> str:
        """Return it as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"


def replica(url: str) -> ReplicaAddress:
    """Return the address of a URL in the settings; ValueError if it cannot be used."""
    import ipaddress  # noqa: PLC0415 - for this alone
    import urllib.parse  # noqa: PLC0415 - likewise

    bad = f"invalid URL {url[: discovery.MAX_ADDRESS]!r}: "
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or PORT
    except ValueError as error:
        raise ValueError(f"{bad}{error}") from None
    host = discovery.host_of(parts.hostname)
    plain = url.isascii() and url.isprintable() and " " not in url and parts.port != 0
    if parts.scheme not in {"http", "https"} or not (host and plain) or parts.username is not None:
        raise ValueError(f"{bad}expected one such as 'https://forewarn-1.example:{PORT}'")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError(f"{bad}expected no path behind the host and the port")
    if parts.scheme == "http":
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = host == "localhost"
        if not loopback:
            raise ValueError(
                f"{bad}http:// only leads to this machine: everything else needs https://"
            )
    return ReplicaAddress(parts.scheme == "https", host, port)


def load(path: Path | None, environment: Mapping[str, str]) -> HostRelaySettings:
    """Return the settings of a file and the environment, with every place made absolute.

    Without a path, the file is the one that `settings.find` finds, if there is one. SettingsError
    names the fault.
    """
    chosen = path or settings.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    tree, sources = settings.gathered(chosen, environment, ENVIRONMENT_PREFIX, HostRelaySettings)
    if not sources:
        raise SettingsError(
            f"no settings: a relay needs upstream.urls, in /etc/forewarn/{CONFIG_NAME} or in the "
            "file of --config"
        )
    loaded = settings.convert(tree, HostRelaySettings, sources)
    loaded = settings.placed(loaded, chosen.resolve().parent if chosen else Path.cwd())
    folder = loaded.state.folder or str(settings.state_folder(environment) / STATE_NAME)
    return msgspec.structs.replace(loaded, state=RelayStateSettings(folder=folder))
