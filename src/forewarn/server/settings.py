"""The service's settings: one TOML file, and the environment, which overrides single settings.

Every setting is optional. Its meaning and the reason for its default are with its field here and
in docs/reference/settings.md. A number's unit is the end of its name. `FOREWARN_CONFIG` names the
file if no option does.

Nothing heavy is imported here: the command line finds the service's socket by these functions.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec

from forewarn import settings
from forewarn.connectors.program import CommandSettings
from forewarn.server.guest.limits import Limits
from forewarn.server.listening import Listener
from forewarn.settings import FieldError, Log

ENVIRONMENT_PREFIX: Final = "FOREWARN_SET_"
CONFIG_VARIABLE: Final = "FOREWARN_CONFIG"
CONFIG_NAME: Final = "forewarn.toml"

OFF: Final = "off"
"""The `socket` of an operator plane that has none."""

DATABASE_NAME: Final = "forewarn.db"
SOCKET_NAME: Final = "operator.sock"
TOKEN_NAME: Final = "operator.token"  # noqa: S105 - a file's name
STATE_NAME: Final = "commands"

MAX_LIMIT: Final = 2**31
"""The most that a limit of the guest plane may be: more is no limit."""

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
"""What `preset = "azure"` stands for: the original's values (protocol.md sections 8 and 9)."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=30 * 24 * 3600)]


class Store(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the service keeps everything."""

    path: str = ""
    """The SQLite file. `""` is `forewarn.db` in the state folder (see `state_folder`), which a user
    without privileges can write to; that folder is made, any other has to be there. A relative path
    starts at the settings file's folder."""


class History(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what is over is remembered."""

    retention_days: Annotated[float, msgspec.Meta(gt=0, le=36500)] = 90.0
    """Operations that ended longer ago are forgotten, and guests may no longer name their events.
    90 days cover a quarter's review."""


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where operators and their tools reach the service."""

    socket: str = ""
    """The unix socket, mode 0600. `""` is `operator.sock` beside the database; `"off"` is none."""
    listen: str = ""
    """A TCP address such as `127.0.0.1:8172` or `[::1]:8172`, where the token is wanted. `""`, the
    default, is none: the socket's file mode is the safer lock."""
    token_file: str = ""
    """Where the token for `listen` is kept, mode 0600; made at the first start. `""` is
    `operator.token` beside the database."""
    hosts: tuple[str, ...] = ()
    """Further names that the service may be asked by over TCP, beside the loopback names and the
    address of `listen`: it answers to no other, which keeps web pages from reaching it."""

    def __post_init__(self) -> None:
        """Refuse an invalid address, and a plane that nobody can reach."""
        if self.listen:
            try:
                settings.split_address(self.listen)
            except ValueError as error:
                raise FieldError("listen", str(error)) from None
        elif self.socket == OFF:
            raise FieldError("listen", 'required, as socket is "off"')


class Guest(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What guests reach, and the limits that none of their connections can exceed."""

    listener: tuple[Listener, ...] = (Listener(),)
    """By default one, on loopback: every address that guests reach is chosen, never assumed."""
    preview_post_without_header: bool = True
    """Whether a POST at 2017-03-01 is taken without `Metadata: true`, as the preview's published
    clients send it (protocol.md section 3)."""

    def __post_init__(self) -> None:
        """Refuse limits that are not positive, and those that would not limit anything."""
        for field in msgspec.structs.fields(Limits):
            if not 0 < getattr(self, field.name) <= MAX_LIMIT:
                raise FieldError(field.name, f"must be more than 0 and at most {MAX_LIMIT}")


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the rules is the operator's to say (protocol.md section 8)."""

    preset: Literal["", "azure"] = ""
    """`azure` sets what follows to the original's values: first-request, 24 hours, two minutes, 10,
    and five requests a second. What is given beside it counts all the same. `""` is none."""
    enablement: Literal["always", "first-request"] = "always"
    """When guests of a scope are told of maintenance. `always`, so that none is stopped unprepared.
    `first-request`: from the first time that one of its machines asks for events, and until none
    has asked for `disable_after_seconds`."""
    disable_after_seconds: Annotated[float, msgspec.Meta(ge=300, le=365 * 24 * 3600)] = 86400.0
    """With first-request: how long a scope stays on without being asked for. 24 hours are the
    original's; at least 300, for that it was asked for is written down once a minute only."""
    first_response_delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=120)] = 0.0
    """With first-request: how long the answer is held back that turns a scope on. The original
    takes up to two minutes; nobody needs that but to try a client against it."""
    user_initiated_limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """The most events that users' own maintenance may have pending; 0 is no limit."""
    rate_per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 50.0
    """How many requests a second a machine may make, approvals apart; one more is answered 429. 0
    is no limit. 50, which three agents that each poll ten times a second stay below; the original's
    is 5."""
    rate_burst: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    """How many requests a machine may make at once after a pause: two seconds' worth, so that what
    starts up together in a machine is not refused."""


class Simulated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the simulated connector's acts last: by default about as long as real ones."""

    freeze_seconds: Seconds = 9.0
    reboot_seconds: Seconds = 90.0
    redeploy_seconds: Seconds = 180.0
    preempt_seconds: Seconds = 30.0
    terminate_seconds: Seconds = 30.0


class Connector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What carries maintenance out."""

    kind: Literal["simulated", "command"] = "simulated"
    """`simulated` touches nothing: a service that has just been installed restarts no machine.
    `command` runs your program ([guides/connectors.md](../guides/connectors.md))."""
    on_unknown: Literal["ask", "repeat", "fail"] = "ask"
    """What to do where nobody knows whether an act was carried out before a restart: ask an
    operator, do it again, or let it fail. By default ask: a second reboot is worse than a wait."""
    simulated: Simulated = Simulated()
    command: CommandSettings = CommandSettings()


class Clock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service's time."""

    scale: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 1.0
    """Its seconds in one real second: 1 but for demonstrations, where 90 makes fifteen minutes last
    ten seconds. A store that has run scaled keeps its time: it is not turned back."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    store: Store = Store()
    history: History = History()
    operator: Operator = Operator()
    guest: Guest = Guest()
    rules: Rules = Rules()
    connector: Connector = Connector()
    clock: Clock = Clock()
    log: Log = Log()


def load(path: Path | None, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a file and the environment, with every place made absolute.

    Args:
        path: The file; None for the one that `settings.find` finds, if there is one.
        environment: The process's variables.

    Raises:
        SettingsError: Something in them is wrong.
    """
    chosen = path or settings.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    sources: list[settings.Source] = [(str(chosen), settings.read(chosen))] if chosen else []
    sources += settings.overrides(environment, ENVIRONMENT_PREFIX, Settings)
    tree: dict[str, Any] = {}
    for _, own in sources:
        tree = settings.merged(tree, own)
    rules = tree.get("rules")
    if isinstance(rules, dict) and rules.get("preset") == "azure":
        tree["rules"] = {**AZURE, **rules}
    loaded = settings.convert(tree, Settings, sources)
    return _placed(loaded, chosen.resolve().parent if chosen else Path.cwd(), environment)


def _placed(loaded: Settings, base: Path, environment: Mapping[str, str]) -> Settings:
    """Return the settings with every file and socket made absolute."""
    written = loaded.store.path
    database = base / Path(written).expanduser() if written else None
    if database is None:
        database = settings.state_folder(environment) / DATABASE_NAME
    folder = database.parent

    def place(text: str, name: str) -> str:
        return str(base / Path(text).expanduser() if text else folder / name)

    operator, command = loaded.operator, loaded.connector.command
    socket = OFF if operator.socket == OFF else place(operator.socket, SOCKET_NAME)
    listeners = tuple(
        msgspec.structs.replace(
            listener,
            proxy_secret_files=tuple(place(text, "") for text in listener.proxy_secret_files),
        )
        for listener in loaded.guest.listener
    )
    return msgspec.structs.replace(
        loaded,
        store=Store(path=str(database)),
        guest=msgspec.structs.replace(loaded.guest, listener=listeners),
        connector=msgspec.structs.replace(
            loaded.connector,
            command=msgspec.structs.replace(command, state=place(command.state, STATE_NAME)),
        ),
        operator=msgspec.structs.replace(
            operator, socket=socket, token_file=place(operator.token_file, TOKEN_NAME)
        ),
    )
