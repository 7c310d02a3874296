"""Rules and their actions, as the settings have them, and the choice of a rule. Pure.

An action has exactly one kind, the one field of `RuleAction` that is given; `actions` implements
the kinds, and this module loads nothing of it. The first rule that matches takes the event. The
last one is built in: it takes everything, logs a line and approves nothing, so a Freeze drains no
machine unless a rule says so. docs/reference/agent-settings.md is made of the fields' docstrings.
"""

import fnmatch
import functools
import json
import shlex
import string
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from forewarn.client.event import Event
from forewarn.settings import FieldError
from forewarn.vocabulary import EventSource, EventType

MAX_TEXT: Final = 64 * 1024
"""The longest message or body, in characters: webhooks take a tenth of it."""

VARIABLES: Final = (
    *("event_id", "event_type", "event_status", "event_source", "description", "resources"),
    *("not_before", "duration_seconds", "machine", "phase", "rule"),
)
"""The variables of templates, such as `$event_id`, and of commands, such as `FOREWARN_EVENT_ID`."""

SAMPLE: Final[Mapping[str, str]] = dict.fromkeys(VARIABLES, 'a "text"') | {"duration_seconds": "-1"}
"""Values that test if a body is JSON for any event: only the duration is a number."""

TOKEN: Final = frozenset("!#$%&'*+-.^_`|~" + string.ascii_letters + string.digits)
"""The characters of a header's name (RFC 9110, section 5.6.2)."""

FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
"""The headers that say where a request ends."""

NOTIFIED: Final = ("slack", "teams", "webhook", "urls_file")

COMMAND_LENGTH: Final = 60
"""The most characters of a program's command line that are shown."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=7 * 24 * 3600)]
Limit = Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)]
Retries = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Body: TypeAlias = Text | dict[str, Any]
Argv = Annotated[tuple[Name, ...], msgspec.Meta(max_length=1000)]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
IDEMPOTENT: Final = frozenset({"GET", "PUT", "DELETE"})
"""The methods that do the same however often they are sent (RFC 9110, section 9.2.2)."""


class ActionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that every action has."""

    tells: ClassVar[bool] = False
    """True if it only tells somebody: it changes nothing of the machine, and is done for each event
    by itself."""
    looks_again: ClassVar[bool] = False
    """True if another tool may undo it unnoticed, and doing it again is a mere look otherwise."""
    templates: ClassVar[tuple[str, ...]] = ()
    """Its fields that are templates, each a text."""
    undo_field: ClassVar[str] = ""
    """The field with the way to undo it; `""` for a kind that needs none."""

    time_limit_seconds: Limit = 60.0
    """The time limit of one try to do or to undo the action; each retry has the whole limit again.
    The end of the notice may end it earlier."""
    needs_seconds: Seconds = 0.0
    """The notice that must be left to begin it. By default any: an action that is cut may still
    have done some good."""
    retries: Retries = 0
    """The number of retries after a failure or a timeout. By default none: most actions wait by
    themselves, and time is short."""
    retry_seconds: Seconds = 1.0
    """The pause before each retry."""
    undo_retries: Retries = 10
    """The number of retries to undo it, with pauses that double up to a minute. Ten retries take
    about seven minutes; an action that still fails then is `stuck`, for an operator to look at, and
    is tried every five minutes."""
    on_failure: Literal["continue", "hold"] = "hold"
    """The reaction to its last failure: `continue` as if it had been done, or `hold`, which does
    not approve the event. By default hold: a machine that is not prepared keeps its whole notice.
    """
    repeatable: bool = False
    """`true`: it may begin again after the agent ended while it ran, and for another event after it
    was cut or took too long; it stops for a more urgent event whose rule waits for less, and its
    undo for an event that needs it done. By default no: only you know if doing it twice is
    harmless."""
    after_boot: Literal["undo", "again", "forget"] = "undo"
    """The effect of a boot during the event. `undo`, the default: its effect is still there, or
    undoing it again is harmless, so it is undone when the event is over. `forget`: the boot has
    undone it. `again`: the boot has undone it, and it is done again at once, because the event is
    not over."""

    @property
    def effect(self) -> str:
        """The key of its effect on the machine: actions with equal keys are done once.

        What they wait for is not in it: two effects on one server would undo each other.
        """
        return ""

    def serves(self, asked: "ActionSettings") -> bool:
        """Return True if it waits, once it is done, for all that another of the same key asks."""
        del asked
        return True

    @property
    def undoes(self) -> bool:
        """True if there is something to undo when the event is over."""
        return not self.undo_field or bool(getattr(self, self.undo_field))

    @property
    def runs_programs(self) -> bool:
        """True if it runs a program, which has some time to end when it is stopped."""
        return False

    def __post_init__(self) -> None:
        """Refuse values that the types allow and no action can have."""
        for name in self.templates:
            _check_template(name, getattr(self, name))


class CommandSettings(ActionSettings, frozen=True, kw_only=True):
    """Runs a program."""

    undo_field: ClassVar[str] = "undo"

    run: Argv
    """The program and its arguments; no shell reads them. The program gets the event in variables,
    and as JSON on standard input: see the table of values."""
    undo: Argv = ()
    """The program that undoes it when the event is over; `[]` for none."""
    shared: bool = True
    """`true`: one run serves all events that need it at the same time. By default yes: a drained
    machine is not drained twice. With `false` it runs for each event."""

    @property
    def effect(self) -> str:
        return f"command {json.dumps([self.run, self.undo])}" if self.shared else ""

    @property
    def runs_programs(self) -> bool:
        return True

    def __post_init__(self) -> None:
        if not self.run:
            raise FieldError("run", "give the program and its arguments")


class ServiceSettings(ActionSettings, frozen=True, kw_only=True):
    """Stops or starts a systemd unit; afterwards the unit is as it was before."""

    looks_again: ClassVar[bool] = True

    stop: str = ""
    """The unit to stop; it is started again if it was running."""
    start: str = ""
    """The unit to start; it is stopped again if it was not running. Give one of `stop` and
    `start`."""
    time_limit_seconds: Limit = 90.0
    """As long as systemd itself gives a unit to stop."""
    repeatable: bool = True
    """By default yes: stopping a stopped unit is harmless."""

    @property
    def unit(self) -> str:
        """The unit's name."""
        return self.stop or self.start

    @property
    def effect(self) -> str:
        return f"service {'stop' if self.stop else 'start'} {self.unit}"

    @property
    def runs_programs(self) -> bool:
        return True

    def __post_init__(self) -> None:
        if bool(self.stop) == bool(self.start):
            raise FieldError("", "give one of stop and start")
        if self.unit.startswith("-"):
            raise FieldError("stop" if self.stop else "start", f"invalid unit {self.unit!r}")


class SignalSettings(ActionSettings, frozen=True, kw_only=True):
    """Sends a signal, then waits until the process exits or writes a file."""

    undo_field: ClassVar[str] = "undo_signal"

    unit: str = ""
    """The systemd unit whose main process gets the signal."""
    pid_file: str = ""
    """The file that holds the number of the process. Give one of `unit` and `pid_file`. A boot must
    empty its folder, such as `/run`: in an older file the number may be another process's."""
    signal: str = "SIGTERM"
    """The signal's name."""
    wait: Literal["nothing", "exit", "file"] = "exit"
    """The end of the wait after the signal. `exit`, the default: the end of the process. `file`: a
    new version of `file`. `nothing`: do not wait."""
    file: str = ""
    """With `wait = "file"`: the file that the process writes, such as a checkpoint."""
    undo_signal: str = ""
    """The signal to send when the event is over; `""` for none."""
    after_boot: Literal["undo", "again", "forget"] = "forget"
    """By default forget: the process that got the signal is gone."""

    @property
    def effect(self) -> str:
        return f"signal {self.signal} {self.unit or self.pid_file}"

    def serves(self, asked: ActionSettings) -> bool:
        assert isinstance(asked, SignalSettings)
        return asked.wait == "nothing" or (self.wait, self.file) == (asked.wait, asked.file)

    @property
    def runs_programs(self) -> bool:
        return bool(self.unit)

    def __post_init__(self) -> None:
        if bool(self.unit) == bool(self.pid_file):
            raise FieldError("", "give one of unit and pid_file")
        if (self.wait == "file") != bool(self.file):
            raise FieldError("file", 'give file and wait = "file" together')
        for name in ("signal", "undo_signal"):
            value = getattr(self, name)
            if value and not (value.startswith("SIG") and value[3:].isalnum() and value.isupper()):
                raise FieldError(name, f"invalid signal {value!r}: expected such as 'SIGTERM'")


class ReadySettings(ActionSettings, frozen=True, kw_only=True):
    """Turns the agent's `/readyz` to 503, so that a balancer's probe takes the machine out."""

    wait_seconds: Seconds = 20.0
    """The wait after that, for the balancer to notice and for requests to end. 20 s is three probes
    5 s apart, and 5 s for requests in progress."""
    repeatable: bool = True
    """By default yes: it changes only what the agent itself answers."""

    @property
    def effect(self) -> str:
        return "ready"

    def serves(self, asked: ActionSettings) -> bool:
        assert isinstance(asked, ReadySettings)
        return self.wait_seconds >= asked.wait_seconds

    def __post_init__(self) -> None:
        if self.wait_seconds >= self.time_limit_seconds:
            limit = f"must be less than time_limit_seconds, {self.time_limit_seconds:g}"
            raise FieldError("wait_seconds", f"{self.wait_seconds:g} {limit}")


class HaproxySettings(ActionSettings, frozen=True, kw_only=True):
    """Drains a server by HAProxy's runtime API; afterwards the server is as it was before."""

    looks_again: ClassVar[bool] = True

    socket: Name
    """The runtime API: the path of a unix socket, or an address such as `10.0.0.5:9999`."""
    server: Name
    """The server, as `backend/server`."""
    wait_sessions: bool = True
    """`true`: wait until the server's last session has ended. By default yes."""
    time_limit_seconds: Limit = 300.0
    """Five minutes, a third of a Reboot's notice, for the longest sessions."""
    repeatable: bool = True
    """By default yes: draining a drained server is harmless."""

    @property
    def address(self) -> tuple[str, int] | None:
        """The API's address and port; None where `socket` is a path."""
        host, colon, port = self.socket.rpartition(":")
        if not colon or not port.isdigit() or "/" in host:
            return None
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def effect(self) -> str:
        return f"haproxy {self.socket} {self.server}"

    def serves(self, asked: ActionSettings) -> bool:
        assert isinstance(asked, HaproxySettings)
        return self.wait_sessions or not asked.wait_sessions

    def __post_init__(self) -> None:
        backend, slash, server = self.server.partition("/")
        unsafe = any(letter.isspace() or letter in ";\\" for letter in self.server)
        if unsafe or not (backend and slash and server):
            expected = "expected 'backend/server'"
            raise FieldError("server", f"invalid server {self.server!r}: {expected}")


class HttpSettings(ActionSettings, frozen=True, kw_only=True):
    """Sends an HTTP request."""

    undo_field: ClassVar[str] = "undo_url"

    url: Name
    """The URL, `http://` or `https://`; any 2xx answer is a success."""
    method: Method = "POST"
    """By default POST, as most webhooks expect."""
    headers: dict[str, Text] = {}
    """Headers to send. A JSON body has `Content-Type: application/json` unless they say
    otherwise."""
    header_files: dict[str, Name] = {}
    """Headers whose values, such as tokens, are read from files at each request."""
    body: Body = ""
    """A template: see the table of values. A table is sent as JSON, and its texts are templates. A
    text counts as JSON if the Content-Type in `headers` says so or, without one, if it parses as
    JSON: the event's values are then escaped for JSON strings."""
    undo_url: str = ""
    """The URL to request when the event is over, with the same headers; `""` for none."""
    undo_method: Method = "POST"
    """The method for `undo_url`."""
    undo_body: Body = ""
    """The body for `undo_url`, like `body`."""
    shared: bool = True
    """`true`: one request serves all events that need it at the same time, as for `command`."""
    retries: Retries = 2
    """Two: a request that failed often succeeds the next time. A POST or PATCH that may have been
    carried out is sent only once, unless `repeatable` says that a second one is harmless: it is
    retried only if no connection was made, or if the answer is 429 or 503."""

    @property
    def effect(self) -> str:
        if not self.shared:
            return ""
        there = [self.method, self.url, self.body, self.headers, self.header_files]
        back = [self.undo_method, self.undo_url, self.undo_body]
        return f"http {json.dumps([*there, *back])}"

    def __post_init__(self) -> None:
        for name, value in {"url": self.url, "undo_url": self.undo_url}.items():
            if value and not is_url(value):
                expected = "expected such as 'https://example.org/x', and a user in a header"
                raise FieldError(name, f"invalid URL {value!r}: {expected}")
        for name in (*self.headers, *self.header_files):
            value = self.headers.get(name, "")
            field = "headers" if name in self.headers else "header_files"
            if name.lower() in FRAMING:
                raise FieldError(field, f"{name!r} follows from the body: leave it out")
            if not name or not TOKEN.issuperset(name) or not is_header_value(value):
                raise FieldError(field, f"invalid header {name!r}")
        for name, body in {"body": self.body, "undo_body": self.undo_body}.items():
            _mapped(body, functools.partial(_check_template, name))
            try:  # as its effect is named by it
                json.dumps(body, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise FieldError(name, f"no JSON has such a value ({error})") from error
            if body and self.is_json(body) and (fault := _json_fault(body)):
                raise FieldError(name, f"invalid JSON when it is filled in ({fault})")

    def is_json(self, body: Body) -> bool:
        """Return True if a body is JSON: a table, by its Content-Type, or because it parses."""
        if isinstance(body, dict):
            return True
        kinds = [text for name, text in self.headers.items() if name.lower() == "content-type"]
        if not kinds:
            return body.lstrip()[:1] in {"{", "["} and not _json_fault(body)
        kind = kinds[0].partition(";")[0].strip().lower()
        return kind == "application/json" or kind.endswith("+json")


class NotifySettings(ActionSettings, frozen=True, kw_only=True):
    """Sends people a message: to Slack, to Teams, to a webhook or through apprise; give one."""

    undo_field: ClassVar[str] = "undo_body"
    tells: ClassVar[bool] = True
    templates: ClassVar[tuple[str, ...]] = ("title", "body", "undo_body")

    slack: Text = ""
    """The URL of an incoming webhook of Slack, or a file that holds it."""
    teams: Text = ""
    """The URL of "When a Teams webhook request is received" in a workflow of Teams, or a file that
    holds it."""
    webhook: Text = ""
    """A URL, or a file that holds it. It gets JSON: the message as `text`, and the event as
    a program of `command` gets it."""
    urls_file: Text = ""
    """A file with apprise's addresses, one a line. It needs the extra `notify`."""
    title: Text = "$machine: $event_type"
    """A template, like `body` and `undo_body`."""
    body: Text = "$event_type of $resources, $event_status, not before $not_before. $description"
    """The message when a rule takes the event."""
    undo_body: Text = ""
    """The message when the event is over; `""` for none."""
    time_limit_seconds: Limit = 10.0
    """10 s, a third of the shortest notice: the next action waits for a chat that does not
    answer."""
    on_failure: Literal["continue", "hold"] = "continue"
    """By default continue: a machine is prepared without the message too."""

    @property
    def runs_programs(self) -> bool:
        return bool(self.urls_file)

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = {name: getattr(self, name) for name in NOTIFIED}
        if sum(map(bool, ways.values())) != 1:
            raise FieldError("", f"give one of {', '.join(NOTIFIED)}")
        for name, place in ways.items():
            if "://" in place and not is_url(place):
                expected = "expected such as 'https://example.org/x', or a file"
                raise FieldError(name, f"invalid URL: {expected}")


class LogSettings(ActionSettings, frozen=True, kw_only=True):
    """Writes a structured line to the agent's log for each event, and another when it is over."""

    undo_field: ClassVar[str] = "undo_message"
    tells: ClassVar[bool] = True
    templates: ClassVar[tuple[str, ...]] = ("message", "undo_message")

    message: Text = "$event_type of $resources is $event_status"
    """The line, a template."""
    undo_message: Text = "$event_type of $resources is over"
    """The line when the event is over, a template; `""` for none."""
    level: Literal["info", "warning", "error"] = "info"
    """The level of both lines. By default info: nothing is wrong."""
    on_failure: Literal["continue", "hold"] = "continue"
    """By default continue: a machine is prepared without the line too."""
    repeatable: bool = True
    """By default yes: a line that is there twice is better than one that is missing."""


class RuleAction(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    dict=True,
):
    """One action of a rule: a table with one key, its kind."""

    command: CommandSettings | None = None
    service: ServiceSettings | None = None
    signal: SignalSettings | None = None
    ready: ReadySettings | None = None
    haproxy: HaproxySettings | None = None
    http: HttpSettings | None = None
    notify: NotifySettings | None = None
    log: LogSettings | None = None

    @functools.cached_property
    def kind(self) -> str:
        """The name of its kind."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @functools.cached_property
    def settings(self) -> ActionSettings:
        """The settings of its kind."""
        settings = getattr(self, self.kind)
        assert isinstance(settings, ActionSettings)
        return settings

    def __post_init__(self) -> None:
        """Refuse an action of no kind or of several."""
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise FieldError("", f"expected one kind of {', '.join(KINDS)}; this has {said}")


def needs_posix(action: RuleAction) -> str:
    """Return the reason why Windows cannot do an action; `""` if it can."""
    if action.service is not None:
        return "needs systemd, which Windows lacks: use command"
    if action.signal is not None:
        return "needs signals, which Windows lacks: use command"
    if action.haproxy is not None and action.haproxy.address is None:
        return "Windows has no unix sockets: give an address such as '10.0.0.5:9999' as socket"
    return ""


KINDS: Final = RuleAction.__struct_fields__


def action_name(action: RuleAction) -> str:
    """Return an action's name for people; a long program is cut short."""
    if action.command is not None:
        return f"command {command_line(action.command.run)}"
    if action.http is not None:
        return f"http {action.http.method} {action.http.url}"
    return action.settings.effect or action.kind


def command_line(argv: Sequence[str]) -> str:
    """Return a program and its arguments as a shell would take them, cut where they are long."""
    text = " ".join(shlex.join(argv).split())
    return text if len(text) <= COMMAND_LENGTH else f"{text[: COMMAND_LENGTH - 1]}…"


def filled(body: Body, values: Mapping[str, str], *, json: bool = False) -> str:
    """Return a body, a template or a table whose texts are templates, with an event's values in it.

    `json` tells that a text is JSON: the values are put into its strings.
    """
    if isinstance(body, dict):
        return _encoded(_mapped(body, lambda text: string.Template(text).substitute(values)))
    if json:
        values = {name: _encoded(value)[1:-1] for name, value in values.items()}
    return string.Template(body).substitute(values)


def is_header_value(text: str) -> bool:
    """Return True if a text may be a header's value."""
    return all((letter.isprintable() or letter == "\t") and ord(letter) < 256 for letter in text)


def is_url(text: str) -> bool:
    """Return True if a text is a URL of http or https; a user in it would not be sent."""
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:  # a port out of range, half a bracket
        return False
    plain = text.isascii() and text.isprintable() and " " not in text and parts.username is None
    return plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _mapped(value: Any, change: Callable[[str], object]) -> Any:  # noqa: ANN401 - a tree of JSON
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if isinstance(value, list) else value


def _json_fault(body: Body) -> str:
    try:
        msgspec.json.decode(filled(body, SAMPLE, json=True))
    except msgspec.DecodeError as error:
        return str(error)
    return ""


def _check_template(field: str, text: str) -> None:
    template = string.Template(text)
    if not template.is_valid():
        raise FieldError(field, "a single dollar sign: write $$ for the sign itself")
    if unknown := [name for name in template.get_identifiers() if name not in VARIABLES]:
        expected = ", ".join(VARIABLES)
        raise FieldError(field, f"unknown variable ${unknown[0]}: expected one of {expected}")


MAX_STEPS: Final = 100
"""The most actions of a rule; more than that belong in a program."""

NAME_LENGTH: Final = 100


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a rule on an event; each condition that is given must hold."""

    types: tuple[EventType, ...] = ()
    """Its type is one of these. `[]`, the default here and in the other lists, matches any."""
    sources: tuple[EventSource, ...] = ()
    """Its source, which tells who asked for it, is one of these."""
    status: tuple[Literal["Scheduled", "Started"], ...] = ()
    """Its status is one of these."""
    max_duration_seconds: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The interruption lasts at most this long. An unknown duration, -1, never matches. Left out:
    any."""
    description: str = ""
    """Its description matches this pattern: `*` is any text, `?` one character, `[ab]` one of
    these; case does not count. `""` matches any."""
    machine: Literal["mine", "others", "any"] = "mine"
    """`mine`, the default: it names this machine. `others`: it names other machines only. While
    this machine's name is unknown, only `any` matches."""
    min_notice_seconds: Seconds | None = None
    """More than this much notice is left. Left out: any."""
    max_notice_seconds: Seconds | None = None
    """At most this much notice is left; before that, later rules may take the event. An event that
    has started has none left. Left out: any."""

    def __post_init__(self) -> None:
        """Refuse bounds without any notice between them."""
        least, most = self.min_notice_seconds, self.max_notice_seconds
        if least is not None and most is not None and least >= most:
            raise FieldError("max_notice_seconds", "must be more than min_notice_seconds")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The actions and the approval for the events that match."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH)]
    """Its name, for the log and for a drop-in that replaces it."""
    enabled: bool = True
    """`false` turns the rule off, for example in a drop-in."""
    prepare: Annotated[tuple[RuleAction, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()
    """The actions, done one after the other; undone when the event is over, the last first."""
    approve: Literal["never", "at-once", "when-prepared", "when-all-ready"] = "never"
    """The time to approve the event before its notice is over. `at-once`: when the rule takes it.
    `when-prepared`: when `prepare` is done, if the event names only this machine; otherwise like
    `when-all-ready`: when all of the event's machines are prepared, and by the first of them."""
    when_cut: Literal["approve", "hold"] = "hold"
    """`approve`: approve the event although the notice was too short for all of `prepare`. By
    default `hold`: the actions that were cut may need the rest of the notice."""
    even_if_started: bool = False
    """`true`: prepare for an event that has already started, too. By default no: the machine may
    stop at any moment."""
    match: Match = Match()
    """The events that it takes. By default every one that names this machine."""

    @property
    def acts(self) -> bool:
        """True if it prepares or approves; one that only tells leaves the event to others."""
        return self.approve != "never" or not all(action.settings.tells for action in self.prepare)

    def __post_init__(self) -> None:
        """Refuse an approval that contradicts the rest."""
        for number, action in enumerate(self.prepare):
            if self.approve == "at-once" and not action.settings.tells:
                allowed = "only log and notify go with approve = 'at-once', which waits for nothing"
                raise FieldError(f"prepare[{number}]", f"{allowed}; 'when-prepared' waits")
        whose = self.match.machine
        if whose != "mine" and self.approve in {"when-prepared", "when-all-ready"}:
            use = f"for events of {whose} machines use 'never' or 'at-once'"
            raise FieldError("approve", f"{self.approve!r} needs match.machine = 'mine'; {use}")


BUILT_IN: Final = Rule(
    name="built-in: log, approve nothing",
    match=Match(machine="any"),
    prepare=(RuleAction(log=LogSettings()),),
)


def choose(rules: Sequence[Rule], event: Event, notice_seconds: float | None) -> Rule:
    """Return the first rule that takes an event; the notice is None if unknown."""
    return next((rule for rule in rules if matches(rule, event, notice_seconds)), BUILT_IN)


def matches(rule: Rule, event: Event, notice_seconds: float | None) -> bool:
    """Return True if a rule takes an event."""
    least, most = rule.match.min_notice_seconds, rule.match.max_notice_seconds
    return (
        concerns(rule, event)
        and (least is None or (notice_seconds is not None and notice_seconds > least))
        and (most is None or (notice_seconds is not None and notice_seconds <= most))
    )


def concerns(rule: Rule, event: Event) -> bool:
    """Return True if a rule takes an event at some length of its notice."""
    match = rule.match
    longest = match.max_duration_seconds
    return (
        rule.enabled
        and (match.machine == "any" or event.concerns_me is (match.machine == "mine"))
        and (not match.types or event.event_type in match.types)
        and (not match.sources or event.source in match.sources)
        and (not match.status or event.status in match.status)
        and (longest is None or 0 <= event.duration_seconds <= longest)  # -1 is unknown
        and fnmatch.fnmatchcase(event.description.casefold(), match.description.casefold() or "*")
    )


def next_change_seconds(rules: Iterable[Rule], notice_seconds: float | None) -> float | None:
    """Return the seconds until time alone may change the choice; None if it does not."""
    if notice_seconds is None:
        return None
    borders = [
        border
        for rule in rules
        for border in (rule.match.min_notice_seconds, rule.match.max_notice_seconds)
        if rule.enabled and border is not None and border < notice_seconds
    ]
    return notice_seconds - max(borders) if borders else None


class ActionOutcome(StrEnum):
    """The end of one action, or the reason why it was never begun."""

    DONE = "done"
    FAILED = "failed"
    """It said so, or took longer than its own limit."""
    CUT = "cut"
    """The notice, or the event, was over before it had ended."""
    INTERRUPTED = "interrupted"
    """The agent ended while it ran, or it may have been done already, and it is not repeatable."""
    NO_TIME = "no-time"
    """It was not begun: too little notice was left."""
    STARTED = "started"
    """It was not begun: the event had started."""
    SHARED = "shared"
    """It was not begun: its effect is there, for another event."""

    @property
    def good(self) -> bool:
        """True if its effect is there."""
        return self in {ActionOutcome.DONE, ActionOutcome.SHARED}

    @property
    def cut(self) -> bool:
        """True if the notice was too short for it."""
        return self in {ActionOutcome.CUT, ActionOutcome.NO_TIME, ActionOutcome.STARTED}
