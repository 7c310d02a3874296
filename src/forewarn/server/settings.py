"""The service's settings: one TOML file, overridden by the environment, judged whole.

Every setting is optional; what a key means and why its default is what it is stands with its
field here and, for people, in docs/reference/settings.md. A key that does not exist, a wrong type
or a number out of bounds is refused with its path. A number's unit is the end of its name.

The environment overrides single keys: `FOREWARN_SET_GUEST__HEAD_SECONDS=3` is `head_seconds` of
`[guest]`. `FOREWARN_CONFIG` names the file where no option does.

Nothing heavy is imported here: the command line finds the service's socket by these functions.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec

from forewarn import configuration
from forewarn.configuration import Log, SettingsError
from forewarn.connectors.program import CommandSettings
from forewarn.server import listening
from forewarn.server.guest.limits import Limits
from forewarn.server.listening import Listener

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


class Guest(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What guests reach, and the limits that none of their connections can exceed."""

    listener: tuple[Listener, ...] = (Listener(),)
    """By default one, on loopback: every address that guests reach is chosen, never assumed."""
    preview_post_without_header: bool = True
    """Whether a POST at 2017-03-01 is taken without `Metadata: true`, as the preview's published
    clients send it (protocol.md section 3)."""


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
        path: The file; None for the one that `find` finds, if there is one.
        environment: The process's variables.

    Raises:
        SettingsError: Something in them is wrong; nothing was started.
    """
    chosen = path or configuration.find(environment, CONFIG_VARIABLE, CONFIG_NAME)
    own = configuration.read(chosen) if chosen is not None else {}
    overriding, faults = configuration.override(environment, ENVIRONMENT_PREFIX, Settings)
    tree = configuration.merged(own, overriding)
    _preset(tree)
    together = configuration.mistakes(tree, Settings, VERDICTS, _mistakes_of_limits)
    if overriding or faults:  # the file's own types are its own fault, the rest is that of both
        wrong = [f"{chosen}: {each.text}" for each in configuration.mistakes(own, Settings)]
        both = " and ".join([str(chosen)] * (chosen is not None) + ["the environment"])
        wrong += faults + [f"{both}: {each.text}" for each in together if each.judged]
    else:
        wrong = [f"{chosen}: {each.text}" for each in together]
    if wrong:
        raise SettingsError(*wrong)
    settings = msgspec.convert(tree, Settings)
    return _placed(settings, chosen.resolve().parent if chosen else Path.cwd(), environment)


def _preset(tree: dict[str, Any]) -> None:
    """Put a preset's values where none are given."""
    rules = tree.get("rules")
    if isinstance(rules, dict) and rules.get("preset") == "azure":
        tree["rules"] = {**rules, **AZURE, **rules}  # in the file's order


def _mistakes_of_operator(operator: Operator, at: str) -> Iterator[str]:
    if operator.listen:
        try:
            configuration.split_address(operator.listen, f"{at}.listen")
        except SettingsError as error:
            yield str(error)
    elif operator.socket == OFF:
        yield f"{at}.socket is off and {at}.listen is empty: give one of them"


def _mistakes_of_limits(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the limits of the guest plane that are none, whatever else is wrong with it."""
    guest = tree.get("guest")
    for field in msgspec.structs.fields(Limits):
        value = guest.get(field.encode_name, 1) if isinstance(guest, dict) else 1
        if isinstance(value, int | float) and not 0 < value <= MAX_LIMIT:
            yield f"at guest.{field.encode_name}: {value} is not more than 0 and at most 2**31"


VERDICTS: Final[configuration.Verdicts] = MappingProxyType(
    {Operator: _mistakes_of_operator, Listener: listening.mistakes}
)
"""What no type tells, by the table."""


def _placed(settings: Settings, base: Path, environment: Mapping[str, str]) -> Settings:
    """Return the settings with every file and socket made absolute."""
    written = settings.store.path
    database = base / Path(written).expanduser() if written else None
    if database is None:
        database = configuration.state_folder(environment) / DATABASE_NAME
    folder = database.parent

    def place(text: str, name: str) -> str:
        return str(base / Path(text).expanduser() if text else folder / name)

    operator, command = settings.operator, settings.connector.command
    socket = OFF if operator.socket == OFF else place(operator.socket, SOCKET_NAME)
    listeners = tuple(
        msgspec.structs.replace(
            listener,
            proxy_secret_files=tuple(place(text, "") for text in listener.proxy_secret_files),
        )
        for listener in settings.guest.listener
    )
    return msgspec.structs.replace(
        settings,
        store=Store(path=str(database)),
        guest=msgspec.structs.replace(settings.guest, listener=listeners),
        connector=msgspec.structs.replace(
            settings.connector,
            command=msgspec.structs.replace(command, state=place(command.state, STATE_NAME)),
        ),
        operator=msgspec.structs.replace(
            operator, socket=socket, token_file=place(operator.token_file, TOKEN_NAME)
        ),
    )
