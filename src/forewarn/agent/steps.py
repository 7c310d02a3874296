"""The actions that a rule may name, as values: what each takes, and its terms.

A step says what is to be done and on which terms; what does it is in `actions`, which this module
does not load. A step has exactly one kind, the one field of `Step` that is given. What a field
means and why its default is what it is stands with it here and, for people, in
docs/reference/agent-settings.md.
"""

import json
import string
from typing import Annotated, ClassVar, Final, Literal

import msgspec

MAX_TEXT: Final = 64 * 1024
"""The longest message or body, in characters: what a webhook takes is a tenth of it."""

VARIABLES: Final = (
    *("event_id", "event_type", "event_status", "event_source", "description", "resources"),
    *("not_before", "duration_seconds", "machine", "phase", "rule"),
)
"""What a template may name as `$event_id`, and a command finds as `FOREWARN_EVENT_ID`."""

NO_UNITS: Final = "this action needs systemd, which Windows does not have; use command there"

Seconds = Annotated[float, msgspec.Meta(ge=0, le=7 * 24 * 3600)]
Limit = Annotated[float, msgspec.Meta(gt=0, le=7 * 24 * 3600)]
Retries = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Argv = Annotated[tuple[Name, ...], msgspec.Meta(max_length=1000)]


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms on which a step is done, whatever its kind."""

    tells: ClassVar[bool] = False
    """Whether it only tells somebody: it changes nothing of the machine, and is done for each
    event by itself."""

    time_limit_seconds: Limit = 60.0
    """How long one try may take, to do and to undo: each retry has the whole of it again. The
    notice may end it earlier, retries or not."""
    needs_seconds: Seconds = 0.0
    """It is begun only if at least so much notice is left. By default any: what the notice's end
    cuts may have done some good."""
    retries: Retries = 0
    """How often it is tried again after it has failed, or has taken longer than its limit. By
    default never: most actions wait by themselves, and time is short."""
    retry_seconds: Seconds = 1.0
    """How long to wait before each retry."""
    undo_retries: Retries = 10
    """How often undoing it is tried again, the pauses doubling up to a minute. Ten take about
    seven minutes: what stays undone is out of service until somebody looks."""
    on_failure: Literal["continue", "hold"] = "hold"
    """What its failure means: go on as if it had been done, or do not approve. By default hold: a
    machine that is not prepared keeps the whole of its notice."""
    repeatable: bool = False
    """Whether it may be begun again when the agent ended in the middle of it. By default not: only
    you know whether doing it twice is harmless."""
    after_boot: Literal["undo", "again", "forget"] = "undo"
    """What a boot in the middle of the event means for it. `undo`, the default: its effect is
    still there (or undoing it twice is harmless), so it is undone when the event is over.
    `forget`: the boot has undone it. `again`: the boot has undone it and it is wanted until the
    event is over, so it is done again now."""

    @property
    def effect(self) -> str:
        """What it does to the machine: two steps with equal effects are one to the machine."""
        return ""

    def fault(self) -> str:
        """Return what no type tells is wrong with it, after the path within the step; or `""`."""
        return ""

    def posix_fault(self) -> str:
        """Return what of it Windows does not have, as `fault` does; `""` if nothing is."""
        return ""


class Command(Terms, frozen=True, kw_only=True):
    """Runs a program of yours."""

    run: Argv
    """The program and its arguments; no shell reads it. The event is in variables, and as JSON on
    its standard input: see what an action is told."""
    undo: Argv = ()
    """The program that undoes it when the event is over. `[]`, the default, is none."""
    shared: bool = True
    """Whether one run serves all events that want it at one time. By default yes: a drained
    machine is not drained twice. With false it is run for each event by itself."""

    @property
    def effect(self) -> str:
        """The program, unless each event wants its own run of it."""
        return f"command {json.dumps([self.run, self.undo])}" if self.shared else ""

    def fault(self) -> str:
        """Refuse an empty program."""
        return "" if self.run else "run: give the program and its arguments"


class Service(Terms, frozen=True, kw_only=True):
    """Stops or starts a systemd unit; undone by the opposite, where that is how it was before."""

    stop: str = ""
    """The unit that is stopped; it is started again if it ran before."""
    start: str = ""
    """The unit that is started; it is stopped again if it did not run before. One of the two."""
    time_limit_seconds: Limit = 90.0
    """As long as systemd itself gives a unit to stop."""
    repeatable: bool = True
    """By default yes: stopping what is stopped is harmless."""

    @property
    def unit(self) -> str:
        """The unit's name."""
        return self.stop or self.start

    @property
    def effect(self) -> str:
        """The unit, and which way."""
        return f"service {'stop' if self.stop else 'start'} {self.unit}"

    def posix_fault(self) -> str:
        """Refuse it: there is no systemd."""
        return NO_UNITS

    def fault(self) -> str:
        """Refuse none of the two, both, and what systemctl would take for an option."""
        if bool(self.stop) == bool(self.start):
            return "give one of stop and start"
        if self.unit.startswith("-"):
            return f"{'stop' if self.stop else 'start'}: {self.unit!r} is no name of a unit"
        return ""


class Signal(Terms, frozen=True, kw_only=True):
    """Sends a signal, then waits for what it brings about: an exit, or a file."""

    unit: str = ""
    """The systemd unit whose main process gets it."""
    pid_file: str = ""
    """The file that holds the process's number. One of the two."""
    signal: str = "SIGTERM"
    """The signal's name."""
    wait: Literal["nothing", "exit", "file"] = "exit"
    """Until when it is not done: `exit`, the default, until the process has ended; `file` until
    `file` has been written since the signal; `nothing` is done with the signal."""
    file: str = ""
    """With `wait = "file"`: the file, such as a checkpoint, that the process writes anew."""
    undo_signal: str = ""
    """The signal that the process gets when the event is over. `""`, the default, is none."""
    after_boot: Literal["undo", "again", "forget"] = "forget"
    """By default forget: the process that got the signal is no more."""

    @property
    def effect(self) -> str:
        """Who gets which signal."""
        return f"signal {self.signal} {self.unit or self.pid_file}"

    def posix_fault(self) -> str:
        """Refuse it: there are no signals."""
        return "this action sends signals, which Windows does not have; use command there"

    def fault(self) -> str:
        """Refuse what does not go together."""
        if bool(self.unit) == bool(self.pid_file):
            return "give one of unit and pid_file"
        if (self.wait == "file") != bool(self.file):
            return 'file: it goes with wait = "file", and that with it'
        for name in ("signal", "undo_signal"):
            value = getattr(self, name)
            if value and not (value.startswith("SIG") and value[3:].isalnum() and value.isupper()):
                return f"{name}: {value!r} is no signal's name: give one such as 'SIGTERM'"
        return ""


class Ready(Terms, frozen=True, kw_only=True):
    """Turns the agent's `/readyz` to 503, so that a balancer's probe takes the machine out."""

    wait_seconds: Seconds = 20.0
    """How long it is then waited, for the balancer to see it and requests to end. 20 s are three
    probes 5 s apart, and 5 s for what is under way."""
    repeatable: bool = True
    """By default yes: it is the agent's own word."""

    @property
    def effect(self) -> str:
        """One word for the whole machine."""
        return "ready"

    def fault(self) -> str:
        """Refuse a wait that its own limit cuts."""
        if self.wait_seconds >= self.time_limit_seconds:
            return (
                f"wait_seconds: {self.wait_seconds:g} is not below time_limit_seconds, "
                f"{self.time_limit_seconds:g}"
            )
        return ""


class Haproxy(Terms, frozen=True, kw_only=True):
    """Drains a server of HAProxy by its runtime API; afterwards it is as it was before."""

    socket: Name
    """Where the runtime API listens: a unix socket's path, or an address such as
    `10.0.0.5:9999`."""
    server: Name
    """The server, as `backend/server`."""
    wait_sessions: bool = True
    """Whether it is done only when the server's last session has ended. By default yes."""
    time_limit_seconds: Limit = 300.0
    """Five minutes: a third of a Reboot's notice, for the longest sessions."""
    repeatable: bool = True
    """By default yes: draining what is drained is harmless."""

    @property
    def address(self) -> tuple[str, int] | None:
        """The API's address and port; None where `socket` is a path."""
        host, colon, port = self.socket.rpartition(":")
        if not colon or not port.isdigit() or "/" in host:
            return None
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def effect(self) -> str:
        """The server, and where."""
        return f"haproxy {self.socket} {self.server}"

    def posix_fault(self) -> str:
        """Refuse a unix socket."""
        if self.address is not None:
            return ""
        return "socket: Windows has no unix sockets; give an address such as '10.0.0.5:9999'"

    def fault(self) -> str:
        """Refuse what the runtime API would read as something else."""
        backend, slash, server = self.server.partition("/")
        unsafe = any(letter.isspace() or letter in ";\\" for letter in self.server)
        if unsafe or not (backend and slash and server):
            return f"server: {self.server!r} is no server: give it as 'backend/server'"
        return ""


class Http(Terms, frozen=True, kw_only=True):
    """Sends an HTTP request."""

    url: Name
    """What is asked, `http://` or `https://`; any answer of 2xx is a success."""
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    """By default POST, as most webhooks want it."""
    headers: dict[str, Text] = {}
    """Sent as they are."""
    header_files: dict[str, Name] = {}
    """Headers whose values are read from files at each request: tokens."""
    body: Text = ""
    """A template: see what an action is told."""
    undo_url: str = ""
    """What is asked when the event is over, with the same headers. `""`, the default, is none."""
    undo_method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    """How `undo_url` is asked."""
    undo_body: Text = ""
    """A template too."""
    shared: bool = True
    """Whether one request serves all events that want it at one time, as for `command`."""
    retries: Retries = 2
    """Two: what fails on a network often does not fail again."""

    @property
    def effect(self) -> str:
        """The request, unless each event wants its own."""
        if not self.shared:
            return ""
        return f"http {json.dumps([self.method, self.url, self.body, self.undo_url])}"

    def fault(self) -> str:
        """Refuse what is no address and templates that name what there is not."""
        for name in ("url", "undo_url"):
            value = getattr(self, name)
            if value and not value.startswith(("http://", "https://")):
                return f"{name}: {value!r} is no address: give one such as 'https://example.org/x'"
        return _template_fault("body", self.body) or _template_fault("undo_body", self.undo_body)


class Notify(Terms, frozen=True, kw_only=True):
    """Tells people, by what apprise can reach (`pip install 'forewarn[notify]'`)."""

    tells: ClassVar[bool] = True

    urls_file: Name
    """A file with apprise's addresses, one a line; they hold secrets, so they are not given
    here."""
    title: Text = "$machine: $event_type"
    """A template, as is each of these."""
    body: Text = "$event_type of $resources, $event_status, not before $not_before. $description"
    """What is told when the event is taken."""
    undo_body: Text = ""
    """What is told when the event is over. `""`, the default, is nothing."""
    on_failure: Literal["continue", "hold"] = "continue"
    """By default continue: a message that is not delivered makes no machine less prepared."""

    def fault(self) -> str:
        """Refuse templates that name what there is not."""
        faults = (_template_fault(n, getattr(self, n)) for n in ("title", "body", "undo_body"))
        return next(filter(None, faults), "")


class Log(Terms, frozen=True, kw_only=True):
    """Writes one structured line to the agent's log for each event, and one when it is over."""

    tells: ClassVar[bool] = True

    message: Text = "$event_type of $resources is $event_status"
    """A template."""
    undo_message: Text = "$event_type of $resources is over"
    """What is written when the event is over. `""` is nothing."""
    level: Literal["info", "warning", "error"] = "info"
    """The level of that line. By default info, as nothing is wrong."""
    on_failure: Literal["continue", "hold"] = "continue"
    """By default continue: a line that is not written makes no machine less prepared."""
    repeatable: bool = True
    """By default yes: a line that stands twice is better than one that is missing."""

    def fault(self) -> str:
        """Refuse templates that name what there is not."""
        return _template_fault("message", self.message) or _template_fault(
            "undo_message", self.undo_message
        )


class Step(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One action of a rule: a table with one key, its kind."""

    command: Command | None = None
    service: Service | None = None
    signal: Signal | None = None
    ready: Ready | None = None
    haproxy: Haproxy | None = None
    http: Http | None = None
    notify: Notify | None = None
    log: Log | None = None

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def terms(self) -> Terms:
        """Its terms, with what its kind takes."""
        terms = getattr(self, self.kind)
        assert isinstance(terms, Terms)
        return terms


KINDS: Final = Step.__struct_fields__


def fault(step: Step, platform: str) -> str:
    """Return what no type tells is wrong with a step, as `path: what`; `""` if nothing is.

    Args:
        step: As it was read.
        platform: As `sys.platform` names it.
    """
    given = [kind for kind in KINDS if getattr(step, kind) is not None]
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        return f": an action has one kind, and this one {said}: give one of {', '.join(KINDS)}"
    problem = step.terms.posix_fault() if platform == "win32" else ""
    problem = problem or step.terms.fault()
    if not problem:
        return ""
    name, colon, rest = problem.partition(": ")
    named = colon and name in type(step.terms).__struct_fields__
    return f".{given[0]}.{name}: {rest}" if named else f".{given[0]}: {problem}"


def _template_fault(name: str, text: str) -> str:
    template = string.Template(text)
    if not template.is_valid():
        return f"{name}: a dollar sign stands alone; write it as $$"
    unknown = [n for n in template.get_identifiers() if n not in VARIABLES]
    if unknown:
        return f"{name}: there is no ${unknown[0]}; known are {', '.join(VARIABLES)}"
    return ""
