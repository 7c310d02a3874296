"""`forewarn emulator`, `record` and `certify`: what handlers are tested with."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import click

from forewarn.cli import output
from forewarn.cli.command import command
from forewarn.cli.exits import (
    END_SECONDS,
    ENDING,
    OF_CODE,
    ExitStatus,
    Failed,
    end_session,
    ended_by,
    handled,
    interrupted_by,
    need_program,
    server_is_installed,
    system_can,
)
from forewarn.cli.fleet import FleetFile, read_file
from forewarn.cli.guest import connected
from forewarn.cli.options import JSON, METADATA, TEXT, argument, flag, option
from forewarn.server.operator import fields

if TYPE_CHECKING:
    from forewarn.client.sync import Client
    from forewarn.testing import Emulator, Exchange
    from forewarn.testing.certify import Handler, HandlerScenario, Result

# The emulator.


@command(
    argument("program [-- CMD ...]", "Run this program, and end with its status.", TEXT),
    option("--fleet FILE", "The machines. Default: one, called vm-0."),
    option("--faults NAME", "A playbook of faults, such as azure-bad-day."),
    option("--port N", "The guests' port. Default: any free one.", fields.within(0, 65535)),
)
def emulator(
    program: Sequence[str], *, fleet: Path | None, faults: str | None, port: int | None
) -> None:
    """Emulate Scheduled Events for tests.

    It prints the addresses for guests and operators, and serves until Ctrl-C, or until CMD ends.
    """
    import logging

    with server_is_installed("forewarn emulator"):
        import structlog

        from forewarn.server import process
        from forewarn.testing import Emulator
        from forewarn.testing import operators as _  # noqa: F401 - an extra that is missing shows
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for name, level in process.LIBRARIES.items():
        logging.getLogger(name).setLevel(level)
    over: SimpleQueue[None] = SimpleQueue()
    with (
        handled(lambda *_: over.put(None), "SIGINT", "SIGTERM"),
        _errors_told(port or 0),
        Emulator(port=port or 0) as started,
    ):
        if fleet is not None:
            _add(started, read_file(str(fleet)))
        else:
            started.machine("vm-0")
        if faults:
            started.faults(faults)
        started.on_request(_warned())
        status = _until_over(started, over, program)
    if status:
        raise SystemExit(status)


def _warned() -> "Callable[[Exchange], None]":
    """Return a function that prints each warning of requests once."""
    told: set[str] = {""}

    def warn(exchange: "Exchange") -> None:
        if (warning := exchange.warning) not in told:
            told.add(warning)
            output.note(f"warning of the handler: {warning}")

    return warn


def _add(started: "Emulator", read: FleetFile) -> None:
    from forewarn.testing import Refused

    try:
        started.fleet(cast("dict[str, object]", read.tree))
    except Refused as refusal:
        failed = Failed(OF_CODE[refusal.code], refusal.message, refusal.facts)
        raise read.blamed(failed) from refusal


@contextlib.contextmanager
def _errors_told(port: int) -> Iterator[None]:
    """End the command with what went wrong within, in a line."""
    from forewarn.server import sockets
    from forewarn.testing import Refused

    try:
        yield
    except Refused as refusal:
        raise Failed(OF_CODE[refusal.code], refusal.message) from refusal
    except OSError as error:
        if error.filename is not None:
            message = f"cannot read {error.filename}: {error.strerror}"
            raise Failed(ExitStatus.USAGE, message) from error
        why = sockets.obstacle(error, "127.0.0.1", port)
        message = f"cannot listen on 127.0.0.1:{port}: {why}"
        raise Failed(ExitStatus.SOCKET_UNUSABLE, message) from error
    except ValueError as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error


def _until_over(started: "Emulator", over: "SimpleQueue[None]", command: Sequence[str]) -> int:
    """Serve until Ctrl-C, or until the program ends; return its status, 0 without one."""
    operators = started.open_operators()
    output.say(f"guests     {started.endpoint}")
    output.say(f"operators  {operators}")
    sys.stdout.flush()
    if not command:
        over.get()
        return 0
    environment = os.environ | started.environment | {"FOREWARN_OPERATOR": operators}
    with system_can(f"run {command[0]}"):
        # A terminal's signals reach all that the program begins, and it may read from there.
        alone = not os.isatty(0)
        process = subprocess.Popen(  # noqa: S603 - what the user asks for
            command, env=environment, start_new_session=alone
        )

    def wait() -> None:
        process.wait()
        over.put(None)

    threading.Thread(target=wait, daemon=True).start()
    over.get()
    return _end(process, alone=alone)


def _end(process: "subprocess.Popen[bytes]", *, alone: bool) -> int:
    """End the program if it still runs; return its status as shells do."""
    if process.poll() is None and alone:
        end_session(process)
    elif process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    status = process.returncode
    return status if status >= 0 else 128 - status


# A recording of what an endpoint says.

EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"

POLL_SECONDS: Final = 1.0
"""Between two questions: as Azure recommends."""

ANSWER_SECONDS: Final = 150.0
"""For an answer: Azure holds the first one back for up to two minutes."""

MAX_ANSWER: Final = 16 * 1024 * 1024
"""The most bytes of an answer: many times what the largest document has."""


@command(
    argument("file FILE", "The file to write; it must not exist yet."),
    METADATA,
    flag("--keep-names", "Keep names and EventIds. Default: made-up ones."),
    flag("--once", "End after the first document."),
)
def record(file: Path, *, endpoint: str | None, keep_names: bool, once: bool) -> None:
    """Record what this machine's endpoint says, until Ctrl-C.

    Emulator.replay gives it back to handlers. Nothing is approved.
    """
    from forewarn import clock
    from forewarn.client import transport
    from forewarn.testing.record import Recording

    wall = clock.SystemClock()
    with (
        connected(endpoint) as client,
        _new(file) as written,
        contextlib.suppress(KeyboardInterrupt, SystemExit),
        interrupted_by("SIGINT", "SIGTERM") as check,
    ):
        url, name = _found(client, check)
        recording = Recording(name, keep_names=keep_names)
        said = ""
        while True:
            check()
            trouble, found = "", b""
            try:
                reply = transport.request(
                    "GET",
                    url,
                    seconds=ANSWER_SECONDS,
                    headers=[("Metadata", "true")],
                    max_body=MAX_ANSWER,
                )
                if reply.status == 200:
                    headers = ((n.decode("latin-1"), v.decode("latin-1")) for n, v in reply.headers)
                    found = recording.answer(reply.body, tuple(headers), wall.now())
                else:
                    trouble = f"{url}: status {reply.status}"
            except (transport.RequestFailed, ValueError) as error:
                trouble = f"{url}: {error}"
            if found:
                written.write(found if written.tell() else recording.beginning() + found)
                written.flush()
                output.note("recorded a document")
                if once:
                    return
            if trouble and trouble != said:
                output.note(trouble)
            said = trouble
            threading.Event().wait(POLL_SECONDS)


@contextlib.contextmanager
def _new(file: Path) -> Iterator[BinaryIO]:
    """Provide a new file, and remove it again if nothing was written."""
    with system_can(f"write {file}"), file.open("xb") as written:
        try:
            yield written
        finally:
            if not written.tell():
                file.unlink()


def _found(client: "Client", check: "Callable[[], None]") -> tuple[str, str]:
    """Wait for the endpoint; return the URL of its events, and the machine's name or `""`."""
    from forewarn.client.event import ClientError

    said = ""
    while True:
        check()
        try:
            client.document()
        except ClientError as error:
            if str(error) != said:
                output.note(said := str(error))
            threading.Event().wait(POLL_SECONDS)
        else:
            if client.name is None:
                output.note("this machine's name is not known")
            return client.endpoint + EVENTS, client.name or ""


# The certificate of a handler.


@command(
    argument(
        "handler [-- COMMAND...]",
        "The handler. It must run {drain} to drain, and {undrain} to undo that: both are replaced "
        "by programs, which are also in FOREWARN_DRAIN and FOREWARN_UNDRAIN.",
        TEXT,
    ),
    option("--only NAME...", "Only this scenario."),
    flag("--namespace", "Let it ask 169.254.169.254 itself, in a network of its own."),
    option(
        "--loopback PORT...",
        "With --namespace: a port of this host's 127.0.0.1 that it needs.",
        fields.within(1, 65535),
    ),
    option(
        "--patience SECONDS",
        "How long the handler has to react, at most 3600.",
        fields.within(1.0, 3600),
        default="30",
    ),
    flag("--without-undrain", "The handler has nothing to undo, as after a checkpoint."),
    option("--junit FILE", "Write JUnit's XML here."),
    flag("--list scenarios", "List the scenarios and exit."),
    JSON,
)
def certify(
    handler: Sequence[str],
    *,
    only: Sequence[str],
    namespace: bool,
    loopback: tuple[int, ...],
    patience: float,
    without_undrain: bool,
    junit: Path | None,
    scenarios: bool,
    as_json: bool,
) -> None:
    """Run a handler through scenarios and say what it does wrong.

    Each scenario starts the handler with an emulator of its own, whose address is in
    FOREWARN_ENDPOINT. All scenarios run at the same time. A handler that drains in its own code
    appends lines 'drain', 'drained' and 'undrain' to the file FOREWARN_DRAIN_LOG instead.
    """
    import logging

    with server_is_installed("forewarn certify", "testing"):
        import structlog

        from forewarn.testing import certify as certifying
    # The log of the guest plane would stand between the verdicts.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    known = {each.name: each for each in certifying.SCENARIOS}
    if scenarios and as_json:
        told = [{"name": each.name, "about": each.about} for each in known.values()]
        output.document({"scenarios": told})
        return
    if scenarios:
        output.table(known.values(), {"SCENARIO": "name", "ABOUT": "about"})
        return
    if not handler:
        raise click.UsageError("expected a command after --, such as: -- ./handle.sh {drain}")
    _refuse_unknown_placeholder(handler)
    if "{" not in handler[0]:
        need_program(handler[0])
    if junit is not None:
        with system_can(f"write {junit}"):  # or it would be known after the last scenario
            junit.touch()
    chosen = _chosen(known, only)
    tried = certifying.Handler(
        command=tuple(handler),
        isolated=_isolation() if namespace else (),
        ports=loopback,
        patience_seconds=patience,
        undrains=not without_undrain,
    )
    results = _judged(tried, chosen, (lambda _: None) if as_json else verdict_printer())
    if junit is not None:
        with system_can(f"write {junit}"):
            junit.write_text(certifying.junit(handler, results), encoding="utf-8")
    _conclude(handler, results, as_json=as_json)


def _judged(
    handler: "Handler", chosen: "Sequence[HandlerScenario]", on_result: "Callable[[Result], None]"
) -> "list[Result]":
    """Run the scenarios to their end, or until a signal ends them and the command."""
    from forewarn.testing import certify

    stop = threading.Event()
    asked: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not asked:  # set() is not for a signal that interrupts it
            asked.append(number)
            stop.set()

    with handled(end, *ENDING):
        results = certify.run(handler, chosen, on_result, stop)
    if asked:
        done = certify.summary(results) or "none ended"
        output.note(f"forewarn: stopped: {done}, {len(chosen) - len(results)} not finished")
        raise SystemExit(ended_by(asked[0]))
    return results


def _conclude(command: Sequence[str], results: "Sequence[Result]", *, as_json: bool) -> None:
    if as_json:
        import msgspec

        output.document(msgspec.to_builtins({"command": command, "results": results}))
    if failed := sum(each.verdict == "failed" for each in results):
        message = f"the handler fails {failed} of {len(results)} scenarios"
        raise Failed(ExitStatus.NOT_CERTIFIED, message)
    if not as_json:
        from forewarn.testing import certify

        output.say(certify.summary(results))


def _refuse_unknown_placeholder(command: Sequence[str]) -> None:
    from forewarn.testing import handler_process

    if unknown := handler_process.unknown_placeholder(command):
        listed = ", ".join(f"{{{name}}}" for name in handler_process.PLACEHOLDERS)
        raise click.UsageError(f"unknown placeholder {{{unknown}}}: expected one of {listed}")


def _isolation() -> tuple[str, ...]:
    from forewarn.testing import handler_process

    try:
        return handler_process.isolation()
    except handler_process.CannotIsolate as error:
        raise Failed(ExitStatus.REFUSED, str(error)) from error


def _chosen(
    known: "Mapping[str, HandlerScenario]", names: Sequence[str]
) -> "list[HandlerScenario]":
    for name in names:
        if name not in known:
            from forewarn.settings import suggestion

            raise click.UsageError(f"no scenario named {name!r}{suggestion(name, known)}")
    return [each for each in known.values() if not names or each.name in names]


def verdict_printer() -> "Callable[[Result], None]":
    """Return a function, for any thread, that prints verdicts as they come.

    What several scenarios show is printed with its exchange once.
    """
    lock = threading.Lock()
    failed_first: dict[str, str] = {}  # the scenario by its message
    warned: set[str] = set()

    def say(result: "Result") -> None:
        with lock:
            first = result.name
            if result.verdict == "failed":
                first = failed_first.setdefault(result.message, result.name)
            lines = [f"{result.verdict:<8} {result.name:<22} {result.seconds:5.1f} s"]
            if first != result.name:
                lines.append(f"         the same as in {first}")
            elif result.message:
                lines.append(f"         {result.message}")
            if result.warning and result.warning not in warned:
                warned.add(result.warning)
                lines.append(f"         warning: {result.warning}")
            if result.exchange and first == result.name:
                lines += (f"         | {line}" for line in result.exchange.splitlines())
            if result.verdict == "failed" and result.output:
                lines += (f"         > {line}" for line in result.output.splitlines())
            output.say("\n".join(map(output.printable, lines)))

    return say
