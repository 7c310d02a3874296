"""`forewarn certify`: runs a handler through scenarios, and judges it."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed, server_is_installed
from forewarn.cli.options import JsonOption, argument, flag, option

if TYPE_CHECKING:
    from forewarn.testing.certify import HandlerScenario, Result


def certify(
    command: Annotated[
        list[str] | None,
        argument("-- COMMAND...", "The handler; {drain} and {undrain} stand for programs."),
    ] = None,
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
    handler finds it by FOREWARN_ENDPOINT.
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
    chosen = _chosen(known, only or ())
    handler = certifying.Handler(
        command=tuple(command),
        isolated=_isolation() if namespace else (),
        ports=tuple(loopback or ()),
        patience_seconds=patience,
        undrains=not without_undrain,
    )
    results = certifying.run(handler, chosen, (lambda _: None) if as_json else _say)
    for file, text in ((junit, certificate.junit), (page, certificate.page)):
        if file is not None:
            _write(file, text(command, results))
    _conclude(command, results, as_json=as_json)


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


def _say(result: "Result") -> None:
    lines = [f"{result.verdict:<8} {result.name:<22} {result.seconds:5.1f} s"]
    if result.message:
        lines.append(f"         {result.message}")
    if result.exchange:
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
