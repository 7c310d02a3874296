"""`forewarn certify`: runs a handler through scenarios, and judges it."""

import difflib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import output
from forewarn.cli.exits import (
    ENDING,
    ExitStatus,
    Failed,
    ended_by,
    handled,
    need_program,
    server_is_installed,
)
from forewarn.cli.options import JsonOption, argument, flag, option

if TYPE_CHECKING:
    from forewarn.testing.certify import Handler, HandlerScenario, Result


CommandArgument = Annotated[
    list[str] | None,
    argument(
        "-- COMMAND...",
        "The handler. Its drain must run {drain}, its way back {undrain}: in the command they "
        "stand for programs, which are also in FOREWARN_DRAIN and FOREWARN_UNDRAIN.",
    ),
]


def certify(
    command: CommandArgument = None,
    *,
    only: Annotated[
        list[str] | None, option("--only", "NAME", "Only this scenario; can be repeated.")
    ] = None,
    namespace: Annotated[
        bool,
        flag("--namespace", "Let it ask 169.254.169.254 itself, in a network of its own."),
    ] = False,
    loopback: Annotated[
        list[int] | None,
        option(
            "--loopback",
            "PORT",
            "With --namespace: a port of this host's 127.0.0.1 that it needs; can be repeated.",
            min=1,
            max=65535,
        ),
    ] = None,
    patience: Annotated[
        float,
        option("--patience", "SECONDS", "How long it has to react.", min=1, max=3600),
    ] = 30.0,
    without_undrain: Annotated[
        bool, flag("--without-undrain", "It has nothing to undo, as after a checkpoint.")
    ] = False,
    junit: Annotated[Path | None, option("--junit", "FILE", "Write JUnit's XML here.")] = None,
    page: Annotated[Path | None, option("--html", "FILE", "Write a page for people here.")] = None,
    scenarios: Annotated[bool, flag("--list", "List the scenarios and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a handler through scenarios and say what it does wrong.

    Each scenario starts the handler beside an emulator of its own, all at the same time. The
    handler finds it by FOREWARN_ENDPOINT. A handler that drains in its own code appends lines
    'drain', 'drained' and 'undrain' to the file FOREWARN_DRAIN_LOG instead.
    """
    with server_is_installed("forewarn certify", "testing"):
        import structlog

        from forewarn.testing import certificate
        from forewarn.testing import certify as certifying
    # The log of the guest plane would stand between the verdicts.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    known = {each.name: each for each in certifying.SCENARIOS}
    if scenarios:
        output.table(
            known.values(), {"SCENARIO": lambda each: each.name, "ABOUT": lambda each: each.about}
        )
        return
    if not command:
        raise typer.BadParameter("expected a command after --, such as: -- ./handle.sh {drain}")
    _refuse_unknown_placeholder(command)
    if "{" not in command[0]:
        need_program(command[0])
    chosen = _chosen(known, only or ())
    handler = certifying.Handler(
        command=tuple(command),
        isolated=_isolation() if namespace else (),
        ports=tuple(loopback or ()),
        patience_seconds=patience,
        undrains=not without_undrain,
    )
    results = _judged(handler, chosen, (lambda _: None) if as_json else Verdicts().say)
    for file, text in ((junit, certificate.junit), (page, certificate.page)):
        if file is not None:
            _write(file, text(command, results))
    _conclude(command, results, as_json=as_json)


def _judged(
    handler: "Handler", chosen: "Sequence[HandlerScenario]", on_result: "Callable[[Result], None]"
) -> "list[Result]":
    """Run the scenarios to their end, or until a signal ends them and the command."""
    from forewarn.testing import certificate, certify

    stop = threading.Event()
    asked: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if not asked:  # set() is not for a signal that interrupts it
            asked.append(number)
            stop.set()

    with handled(end, *ENDING):
        results = certify.run(handler, chosen, on_result, stop)
    if asked:
        done = certificate.summary(results) or "none ended"
        output.note(f"forewarn: stopped: {done}, {len(chosen) - len(results)} not finished")
        raise SystemExit(ended_by(asked[0]))
    return results


def _conclude(command: list[str], results: "Sequence[Result]", *, as_json: bool) -> None:
    if as_json:
        import msgspec

        output.document(msgspec.to_builtins({"command": command, "results": results}))
    if failed := sum(each.verdict == "failed" for each in results):
        message = f"the handler fails {failed} of {len(results)} scenarios"
        raise Failed(ExitStatus.NOT_CERTIFIED, message)
    if not as_json:
        from forewarn.testing import certificate

        output.say(certificate.summary(results))


def _refuse_unknown_placeholder(command: Sequence[str]) -> None:
    from forewarn.testing import handler_process

    if unknown := handler_process.unknown_placeholder(command):
        listed = ", ".join(f"{{{name}}}" for name in handler_process.PLACEHOLDERS)
        raise typer.BadParameter(f"unknown placeholder {{{unknown}}}: expected one of {listed}")


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
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else "see --list"
            raise typer.BadParameter(f"no scenario named {name!r} ({hint})")
    return [each for each in known.values() if not names or each.name in names]


class Verdicts:
    """Prints verdicts as they come: what several scenarios show, with its exchange once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[str, str] = {}
        """The scenario that failed first with a message, by the message."""

    def say(self, result: "Result") -> None:
        """Print one; may be called in any thread."""
        with self._lock:
            first = result.name
            if result.verdict == "failed":
                first = self._first.setdefault(result.message, result.name)
            lines = [f"{result.verdict:<8} {result.name:<22} {result.seconds:5.1f} s"]
            if first != result.name:
                lines.append(f"         the same as in {first}")
            elif result.message:
                lines.append(f"         {result.message}")
            if result.exchange and first == result.name:
                lines += (f"         | {line}" for line in result.exchange.splitlines())
            if result.verdict == "failed" and result.output:
                lines += (f"         > {line}" for line in result.output.splitlines())
            output.say("\n".join(map(output.printable, lines)))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise Failed(ExitStatus.USAGE, message) from error
