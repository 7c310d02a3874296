"""The service's settings: one TOML file, and the environment, which overrides single settings.

Every setting is optional. docs/reference/settings.md is made of the docstrings of the fields. This
module loads quickly: the command line finds the socket with it.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec

from forewarn import settings
from forewarn.connectors.settings import CommandConnectorSettings, LibvirtSettings
from forewarn.maintenance.model import MAX_TEXT, Enablement, Policy, Queueing
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import Listener
from forewarn.server.relay_feed import GuestRules
from forewarn.settings import OFF, FieldError, FileName, Log, SettingsError

ENVIRONMENT_PREFIX: Final = "FOREWARN_SET_"
CONFIG_VARIABLE: Final = "FOREWARN_CONFIG"
CONFIG_NAME: Final = "forewarn.toml"

EXAMPLE_URL: Final = "postgresql://forewarn@db1,db2/forewarn"

DATABASE_NAME: Final = "forewarn.db"
SOCKET_NAME: Final = "operator.sock"
TOKEN_NAME: Final = "operator.token"  # noqa: S105 - a file's name
STATE_NAME: Final = "commands"
SIMULATED_HOSTS_NAME: Final = "simulated-hosts.json"

ORIGIN: Final = re.compile(r"https?://[^/?#@\s]+(?<!:443)(?<!:80)", re.IGNORECASE)
"""An address of a site, as browsers name it in `Origin`: without the port that goes by itself."""

NAME: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f.]*(:[0-9A-Fa-f.]*){2,}")
"""A name or an IP address in `Host`, without its port and brackets."""

MAX_HOSTS: Final = 100
"""The most libvirt hosts that one service watches: each is a process of 12 MB."""

MAX_CHECKS: Final = 100
"""The most checks of units: each is a program or a page that somebody looks after."""

MAX_REPLICA_NAME: Final = 64
"""The most characters of a replica's name, as of a host's."""

AZURE: Final[Mapping[str, object]] = MappingProxyType(
    {
        "enablement": "first-request",
        "disable_after_seconds": 86400.0,
        "first_response_delay_seconds": 120.0,
        "user_initiated_limit": 10,
        "rate_per_second": 5.0,
        "rate_burst": 5,
    }
)
"""The values of `preset = "azure"`: Azure's own (protocol.md sections 8 and 9)."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=30 * 24 * 3600)]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The database."""

    path: FileName = ""
    """The SQLite file. `""` is `forewarn.db` in the state folder.

    If there is no such file, the service makes a new database (mode 0600), and the log warns of it.
    Any folder but the state folder must exist."""
    url: str = ""
    """A PostgreSQL database that several replicas share, such as
    `postgresql://forewarn@db1,db2,db3/forewarn`. `""` is SQLite. A URL needs Forewarn's extra
    `postgresql`, and cannot be given together with `store.path`. The socket and the token are then
    in the state folder.

    The URL is
    [libpq's](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING). Of
    several hosts the one that accepts writes is used. It may change these defaults:
    `connect_timeout=3`, `keepalives_idle=2`, `keepalives_interval=1`, `keepalives_count=3`,
    `tcp_user_timeout=5000`, `target_session_attrs=read-write`, `application_name=forewarn`; and by
    `options` the server's `lock_timeout` (10 s) and `idle_in_transaction_session_timeout` (5 s).

    The database must be empty or Forewarn's own, in UTF-8, on PostgreSQL 14 or newer, and its user
    must own it. `synchronous_commit = off` is refused: a crash of the server would lose approvals.
    A URL with a password is refused, because settings are shown and logged."""
    password_file: FileName = ""
    """The file with the password for `store.url` and nothing else, mode 0640 or stricter. It is
    read for each new connection. `""` leaves it to libpq (`PGPASSFILE`, a service file)."""

    def __post_init__(self) -> None:
        """Refuse an address that libpq does not take, and a password in it."""
        if not self.url:
            if self.password_file:
                raise FieldError("password_file", "needs url")
            return
        if not self.url.startswith(("postgresql://", "postgres://")):
            message = f"invalid URL: expected one such as {EXAMPLE_URL}"
            raise FieldError("url", message)
        parts = urlsplit(self.url)
        secret = {"password", "sslpassword"} & parse_qs(parts.query).keys()
        # A password with a slash, which should be escaped, ends the host's part of the URL.
        if parts.password is not None or "@" in parts.path or secret:
            message = "has a password: write it to a file of mode 0600, and name that in"
            raise FieldError("url", f"{message} store.password_file")


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The retention of operations that have ended, of the audit log and of news."""

    retention_days: Annotated[float, msgspec.Meta(gt=0, le=36500)] = 90.0
    """Operations that ended longer ago are deleted; an approval of their events is then refused. 90
    days cover the review of a quarter."""
    audit_retention_days: Annotated[float, msgspec.Meta(gt=0, le=36500)] = 365.0
    """Older records of the audit log are deleted. A year is what audits look back."""
    news_retention_days: Annotated[float, msgspec.Meta(gt=0, le=366)] = 7.0
    """Older news ([news.md](news.md)) is deleted. One item takes about 600 bytes; an operation has
    about six. In a week a reader that broke on a Friday is mended without a gap."""


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This process among those that share a PostgreSQL database."""

    name: str = ""
    """The name of this replica, up to 64 characters; `""` is the host's name. A replica keeps its
    name together with its folder [`connector.command.state`](#connectorcommandstate), where it
    finds after a restart what it had begun. A second process with the same name is refused, and so
    is the folder of another replica."""
    max_stale_seconds: Annotated[float, msgspec.Meta(ge=5, le=24 * 3600)] = 30.0
    """The time for which guests still read from memory when this replica cannot reach the database,
    5 to 86,400. Then their connections are closed without an answer. Approvals are refused with 503
    from the beginning, and `/readyz` answers 503 after 5 seconds. By default 30: the shortest
    notice, that of a Preempt, is that long."""

    def __post_init__(self) -> None:
        """Refuse a name that does not fit in a line."""
        if len(self.name) > MAX_REPLICA_NAME or not self.name.isprintable():
            message = f"expected up to {MAX_REPLICA_NAME} printable characters"
            raise FieldError("name", message)


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The addresses of the service for operators and their tools."""

    socket: FileName = ""
    """The unix socket, mode 0600. `""` is `operator.sock` beside the database; `"off"` is none."""
    socket_group: str = ""
    """A group of this machine whose members may use the socket, with the role `operator`; its mode
    is then 0660. The service's user must be a member of it, and its members must be able to enter
    the socket's folder. `""`: only root and the service's user, with the role `admin`."""
    listen: str = ""
    """A TCP address such as `127.0.0.1:8172` or `[::1]:8172`, which needs a token. `""` is none:
    the socket is safer, because its file has a mode. An address other than loopback needs
    `tls_certificate`, or `insecure`. Sockets that systemd has opened are used
    ([running.md](../guides/running.md#restarts-that-no-client-notices))."""
    token_file: FileName = ""
    """The file with a token for `listen` whose role is `admin`, mode 0600 or 0400. The service
    makes it at the first start, and reads it again at SIGHUP. For the command line, this is the
    file with the operator's own token. `""` is `operator.token` beside the database. A credential
    of systemd may have mode 0440."""
    tls_certificate: FileName = ""
    """The file with the certificate of `listen`, and those that signed it, in PEM. `""` is plain
    HTTP. Read again at SIGHUP; open connections keep the old one."""
    tls_key: FileName = ""
    """The file with the certificate's key, in PEM, without a password. `""`: it is in the file of
    the certificate."""
    tls_ca: FileName = ""
    """For the command line: the file with the certificates, in PEM, by which it verifies the
    service. `""`: those of the system."""
    hosts: tuple[str, ...] = ()
    """Further `Host` names, without a port, that the service accepts over TCP, besides the loopback
    names and the address of `listen`. Others are refused, so that web pages cannot reach the
    service by DNS rebinding.

    An address such as `"https://ops.example"` is that of a [proxy that ends
    TLS](../guides/page.md#behind-a-proxy-that-ends-tls): `forewarn page` prints links to it, and
    requests with it as their `Origin` are accepted."""

    insecure: bool = False
    """`true` allows plain HTTP for `operator.listen` on an address that is not loopback. Tokens
    then cross the network in clear, unless something else encrypts it, such as a VPN."""

    page: bool = True
    """`true`: `operator.listen` also serves the [page](../guides/page.md), for browsers that
    `forewarn page` logs in."""

    @property
    def has_page(self) -> bool:
        """True if there is a page."""
        return self.page and bool(self.listen)

    def __post_init__(self) -> None:
        """Refuse an invalid address, and a plane that is out of reach."""
        if not self.listen and self.socket == OFF:
            raise FieldError("listen", 'required, as socket is "off"')
        for host in self.hosts:
            if not (ORIGIN if "://" in host else NAME).fullmatch(host):
                expected = "'https://ops.example', or 'ops.example' without a port"
                raise FieldError("hosts", f"invalid {host!r}: expected one such as {expected}")
        or_else = ", or set insecure where something else encrypts it"
        _check_listener(self, ": the socket does not use TLS", or_else, plain=self.insecure)
        if self.socket_group and self.socket == OFF:
            raise FieldError("socket_group", 'needs the socket, which is "off"')


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of the service for the relays on hosts."""

    listen: str = ""
    """A TCP address for relays, such as `127.0.0.1:8173`. `""` is none: guests ask the service
    itself. An address other than loopback needs `tls_certificate`. A socket that systemd has opened
    is used ([running.md](../guides/running.md#restarts-that-no-client-notices))."""
    tls_certificate: FileName = ""
    """The file with the certificate of `listen`, and those that signed it, in PEM. Read again at
    SIGHUP; open connections keep the old one."""
    tls_key: FileName = ""
    """The file with the certificate's key, in PEM, without a password. `""`: it is in the file of
    the certificate."""
    connections: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    """Connections of relays at once; each host has one that waits, and for a moment another one. A
    further connection replaces the oldest that has shown no token, or not its whole body; if there
    is none, it is answered 503."""

    def __post_init__(self) -> None:
        """Refuse an invalid address, and to send tokens over a network that others may read."""
        _check_listener(self)


def _check_listener(
    its: OperatorSettings | RelaySettings, why: str = "", or_else: str = "", *, plain: bool = False
) -> None:
    """Refuse an invalid address, a certificate without a use, and tokens in clear unless `plain`.

    `why` an address is needed, and what else might be done, end the messages.
    """
    if its.listen:
        settings.check_address("listen", its.listen)
        address, _ = settings.split_address(its.listen)
        if not (its.tls_certificate or plain or ipaddress.ip_address(address).is_loopback):
            message = f"plain HTTP is for loopback addresses alone{or_else}"
            raise FieldError("listen", f"needs tls_certificate: {message}")
    elif its.tls_certificate:
        raise FieldError("tls_certificate", f"needs listen{why}")
    if its.tls_key and not its.tls_certificate:
        raise FieldError("tls_key", "needs tls_certificate")


class GuestSettings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The guest plane: its listeners, and the limits of each connection."""

    listener: tuple[Listener, ...] = (Listener(),)
    """By default one, on loopback: you choose the addresses that guests reach."""
    post_without_header: Literal["preview", "always", "never"] = "preview"
    """The versions at which a POST is accepted without `Metadata: true`
    ([protocol.md](../protocol.md) section 3): `"preview"` is 2017-03-01 only, whose published
    clients do not send it; `"always"` is every version, for clients that never send it; `"never"`
    is none."""


class RulesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules that operators can change (protocol.md section 8)."""

    preset: Literal["", "azure"] = ""
    """`"azure"` sets `enablement`, `disable_after_seconds`, `first_response_delay_seconds`,
    `user_initiated_limit` and the rate to Azure's values: first-request, 24 hours, two minutes, 10,
    and five requests a second. A setting that you give has precedence."""
    enablement: Literal["always", "first-request"] = "always"
    """`"always"`: guests always read of maintenance ([protocol.md](../protocol.md) section 8).
    `"first-request"`: a scope's guests do from the first time that one of its machines asks for
    events until none has asked for `disable_after_seconds`. By default always: no machine is
    stopped unprepared."""
    disable_after_seconds: Annotated[float, msgspec.Meta(ge=300, le=365 * 24 * 3600)] = 86400.0
    """With first-request: the time for which a scope stays on after its last request. 24 hours is
    Azure's value; less than 300 is refused, because requests are saved once a minute."""
    first_response_delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=120)] = 0.0
    """With first-request: the delay of the answer to the request that turns a scope on, at most
    120. Use it only to test a client. Azure takes up to two minutes."""
    user_initiated_limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """The most pending events of users' own maintenance; 0 is no limit."""
    queue: Literal["announcement", "start"] = "announcement"
    """`"announcement"`: while another update domain of its scope is down, or announced to go down,
    maintenance is Queued, and no guest hears of it. `"start"`: it is announced at once, and only
    its start waits; for guests that prepare at the last moment. `queue` of a scope in the fleet
    file has precedence."""
    back_seconds: Annotated[float, msgspec.Meta(ge=1, le=24 * 3600)] = 600.0
    """The time in which a machine that was listening must ask for events again after the connector
    has finished, from 1 to 86400. After that the operation has failed: "did not come back". By
    default ten minutes: five for a slow boot, and five until the next poll."""
    host_back_seconds: Annotated[float, msgspec.Meta(ge=1, le=24 * 3600)] = 1800.0
    """The time limit for the reboot of a drained host, from its reboot command to another boot id.
    After that the drain is stuck. By default half an hour, for a server that tests its memory and
    installs firmware."""
    settle_seconds: Annotated[float, msgspec.Meta(ge=0, le=24 * 3600)] = 0.0
    """The time for which an update domain still counts as down after its machines are back, from 0
    to 86400. `settle_seconds` of a scope in the fleet file has precedence. It is the time in which
    caches fill."""
    rate_per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 50.0
    """A machine's requests a second, without its approvals; more are answered 429. 0 is no limit;
    Azure's is 5. Each replica counts for itself. Three agents that poll ten times a second stay
    below 50."""
    rate_burst: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    """A machine's requests at once after a pause. By default two seconds' worth, for programs that
    start together."""

    @property
    def policy(self) -> Policy:
        """These settings as the deciders' policy."""
        return Policy(
            enablement=Enablement(self.enablement),
            disable_after=timedelta(seconds=self.disable_after_seconds),
            user_initiated_limit=self.user_initiated_limit,
            queue=Queueing(self.queue),
            settle=timedelta(seconds=self.settle_seconds),
            back=timedelta(seconds=self.back_seconds),
            host_back=timedelta(seconds=self.host_back_seconds),
        )


class SimulatedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The durations of the simulated connector's tasks: by default about those of real ones."""

    freeze_seconds: Seconds = 9.0
    """The duration of a Freeze."""
    reboot_seconds: Seconds = 90.0
    """The duration of a Reboot."""
    redeploy_seconds: Seconds = 180.0
    """The duration of a Redeploy."""
    preempt_seconds: Seconds = 30.0
    """The duration of a Preempt."""
    terminate_seconds: Seconds = 30.0
    """The duration of a Terminate."""
    host_reboot_seconds: Seconds = 180.0
    """The reboot of a drained host. The simulated hosts are those of the fleet's machines; their
    state is in `simulated-hosts.json` beside the database. Servers test their memory first."""


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connector, which carries maintenance out."""

    kind: Literal["simulated", "libvirt", "command"] = "simulated"
    """`simulated` touches nothing, so that a new installation restarts no machine. `libvirt` acts
    on hosts under libvirt; `command` runs your program
    ([guides/connectors.md](../guides/connectors.md))."""
    on_unknown: Literal["ask", "repeat", "fail"] = "ask"
    """The treatment of a task that may or may not have been carried out before a restart: `"ask"`
    an operator, `"repeat"` it, or let it `"fail"`. By default ask: a second reboot is worse than a
    wait."""
    simulated: SimulatedSettings = SimulatedSettings()
    libvirt: LibvirtSettings = LibvirtSettings()
    command: CommandConnectorSettings = CommandConnectorSettings()

    def __post_init__(self) -> None:
        """Refuse a connector without a program or a host, and a program that cannot be run."""
        if self.kind == "libvirt" and not self.libvirt.host:
            raise FieldError("libvirt.host", "it is empty: add [[connector.libvirt.host]]")
        if self.kind != "command":
            return
        if not self.command.program:
            message = "it is empty: set the program that carries maintenance out, such as "
            raise FieldError("command.program", f"{message}['/usr/local/bin/maintain']")
        for name in ("program", "check_command"):
            if argv := getattr(self.command, name):
                _check_program(f"command.{name}", argv)


class UnitCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that decides if further units may go. Policies name it."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
    """Its name for policies: letters, digits, `.`, `_` and `-`."""
    program: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=4096)], ...],
        msgspec.Meta(min_length=1),
    ]
    """The program and its arguments, such as `["/usr/local/bin/smoke-test"]`: a full path, or a
    bare name that PATH finds; no shell reads it. Exit status 0 passes. It runs as the service's
    user, with `{"maintenance": 3, "check": "smoke", "wave": 1}` as its standard input, and
    `FOREWARN_MAINTENANCE`, `FOREWARN_CHECK` and `FOREWARN_WAVE`. When its time is over its process
    group gets SIGTERM, and SIGKILL 2 seconds later. It may run twice, so it must change nothing."""

    def __post_init__(self) -> None:
        """Refuse a program that cannot be run."""
        _check_program("program", self.program)


def _check_program(field: str, argv: Sequence[str]) -> None:
    """Refuse a command line that no system could run, by its field."""
    if not argv[0] or ("/" in argv[0] and not argv[0].startswith("/")):
        message = f"invalid program {argv[0]!r}: expected a full path or a bare name"
        raise FieldError(field, message)
    if any("\0" in argument for argument in argv):
        raise FieldError(field, "it contains a NUL character, which no argument can contain")


class MaintenanceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checks that maintenances may use."""

    check: Annotated[tuple[UnitCheck, ...], msgspec.Meta(max_length=MAX_CHECKS)] = ()
    """None by default. They are here and not in a request, so that an operator's token is no way
    to run a program as the service's user."""

    def __post_init__(self) -> None:
        """Refuse two checks of one name."""
        names = [check.name for check in self.check]
        if len(set(names)) < len(names):
            raise FieldError("check", "two checks have the same name")


class FleetLibvirtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The libvirt hosts that the fleet is on."""

    sync: bool = False
    """`true`: the service surveys the hosts every 5 s. When a machine moves, the fleet gets its new
    host; when one crashes, it has an unforeseen Reboot. By default it connects to no host."""
    python: str = ""
    """The Python with the module `libvirt` that reads the hosts: `"/usr/bin/python3"` with Debian's
    `python3-libvirt`. `""` is that of `connector.libvirt.python`, else the service's own."""
    uris: dict[str, str] = {}
    """The libvirt URIs of hosts, by their names in the fleet, such as `{ h1 =
    "qemu+ssh://h1/system" }`, in addition to the hosts of the `libvirt` connector; at most 100."""

    def __post_init__(self) -> None:
        """Refuse invalid hosts."""
        for name, uri in self.uris.items():
            if not name or len(name) > MAX_TEXT or not name.isprintable():
                raise FieldError("uris", f"invalid host name {name[:MAX_TEXT]!r}")
            if ":" not in uri or not uri.isprintable():
                message = f"invalid URI {uri!r} of {name}: expected one as 'qemu+ssh://h1/system'"
                raise FieldError("uris", message)


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of the fleet."""

    libvirt: FleetLibvirtSettings = FleetLibvirtSettings()


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of requests to webhooks."""

    tls_ca: FileName = ""
    """The file with the certificates, in PEM, by which receivers are verified. `""`: the system's,
    which include those of chat services. It is read at the first request after a start."""


class ClockSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service's time."""

    scale: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 1.0
    """Seconds of its time in a real one: 1, except for demonstrations. A service with
    `relay.listen` refuses any other. A database keeps the scale that it was first served with; with
    another one the service ends with status 6."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    store: StoreSettings = StoreSettings()
    replica: ReplicaSettings = ReplicaSettings()
    history: HistorySettings = HistorySettings()
    operator: OperatorSettings = OperatorSettings()
    relay: RelaySettings = RelaySettings()
    guest: GuestSettings = GuestSettings()
    rules: RulesSettings = RulesSettings()
    connector: ConnectorSettings = ConnectorSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    fleet: FleetSettings = FleetSettings()
    webhooks: WebhookSettings = WebhookSettings()
    clock: ClockSettings = ClockSettings()
    log: Log = Log()

    @property
    def hypervisors(self) -> dict[str, str]:
        """The URIs of the fleet's libvirt hosts, by name."""
        of_connector = {host.name: host.uri for host in self.connector.libvirt.host}
        return of_connector | self.fleet.libvirt.uris

    @property
    def guest_rules(self) -> GuestRules:
        """The rules of answers to guests, here and by relays."""
        rules = self.rules
        return GuestRules(
            post_without_header=self.guest.post_without_header,
            rate_per_second=rules.rate_per_second,
            rate_burst=rules.rate_burst,
            enablement=rules.enablement,
            disable_after_seconds=rules.disable_after_seconds,
            first_response_delay_seconds=rules.first_response_delay_seconds,
        )

    @property
    def libvirt_python(self) -> str:
        """The Python that has the module `libvirt`; `""` is this process's."""
        return self.fleet.libvirt.python or self.connector.libvirt.python

    def __post_init__(self) -> None:
        """Refuse to watch no host, or more than one process can, and relays of a scaled clock."""
        if self.relay.listen and self.clock.scale != 1:
            message = "relays live in real time: they need a clock.scale of 1"
            raise FieldError("relay.listen", message)
        hosts = len(self.hypervisors)
        if self.fleet.libvirt.sync and not 0 < hosts <= MAX_HOSTS:
            message = f"sync = true needs 1 to {MAX_HOSTS} hosts, here or of the connector"
            raise FieldError("fleet.libvirt.uris", f"{message}; there are {hosts}")


def load(
    path: Path | None, environment: Mapping[str, str], *, without_file: bool = False
) -> Settings:
    """Return the settings of a file and the environment, with every place made absolute.

    Without a path, the file is the one that `settings.find` finds, if there is one; with
    `without_file` there is none. SettingsError names the fault.
    """
    chosen = path
    if chosen is None and not without_file:
        chosen = settings.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    tree, sources = settings.gathered(chosen, environment, ENVIRONMENT_PREFIX, Settings)
    rules = tree.get("rules")
    if isinstance(rules, dict) and rules.get("preset") == "azure":
        tree["rules"] = {**AZURE, **rules}
    loaded = settings.convert(tree, Settings, sources)
    if loaded.store.url and loaded.store.path:
        raise SettingsError("store.url: cannot be given together with store.path: remove one")
    replace = msgspec.structs.replace
    loaded = settings.placed(loaded, chosen.resolve().parent if chosen else Path.cwd())
    database = Path(loaded.store.path or settings.state_folder(environment) / DATABASE_NAME)
    operator, connector = loaded.operator, loaded.connector

    def beside(name: str) -> str:
        return str(database.parent / name)

    command = replace(connector.command, state=connector.command.state or beside(STATE_NAME))
    return replace(
        loaded,
        store=replace(loaded.store, path=str(database)),
        connector=replace(connector, command=command),
        operator=replace(
            operator,
            socket=operator.socket or beside(SOCKET_NAME),
            token_file=operator.token_file or beside(TOKEN_NAME),
        ),
    )
