"""The command line: all commands, and how their errors are printed."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import click

from forewarn.cli import (
    accounts,
    agent,
    connector,
    demo,
    doctor,
    events,
    fleet,
    follow,
    guest,
    host,
    maintenance,
    output,
    relay,
    serve,
    store,
    testing,
    unit,
    webhook,
)
from forewarn.cli.command import READ_ON, CommandGroup, command
from forewarn.cli.exits import ExitStatus, Failed, handled
from forewarn.cli.options import Choice, argument

NAME: Final = "forewarn"

MAX_LINE: Final = 74
"""The room in 80 columns for a command and its summary, beside the blanks around them."""

COMPLETE: Final = "_FOREWARN_COMPLETE"
"""The variable by which the script of `completion` asks for what may follow."""

TRACEBACK_VARIABLE: Final = "FOREWARN_TRACEBACK"
"""If set, an internal error shows its traceback."""


@command(argument("shell SHELL", "The shell: bash, zsh or fish.", Choice(("bash", "zsh", "fish"))))
def completion(shell: str) -> None:
    """Print a script that completes commands and options."""
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    output.say(script(FOREWARN, {}, NAME, COMPLETE).source())


SECTIONS: Final[dict[str, dict[str, click.Command]]] = {
    "Service, such as 'forewarn serve'": {
        "serve": serve.serve,
        "relay": relay.commands,
        "replicas": serve.replicas,
        "login": accounts.log_in,
        "logout": accounts.log_out,
        "page": accounts.page,
        "token": accounts.token,
        "audit": accounts.audit,
        "webhook": webhook.commands,
        "connector": connector.commands,
        "restore-check": store.restore_check,
        "store": store.commands,
        "unit": unit.unit,
    },
    "Maintenance, such as 'forewarn schedule reboot web-0 --dry-run'": {
        "fleet": fleet.commands,
        "host": host.commands,
        "schedule": maintenance.schedule,
        "rollout": maintenance.rollout,
        "maintenance": maintenance.commands,
        "events": events.events,
        "approve": events.approve,
        "cancel": events.cancel,
        "postpone": events.postpone,
        "hold": events.hold,
        "release": events.release,
        "alerts": events.alerts,
        "acknowledge": events.acknowledge,
        "resolve": events.resolve,
        "history": events.history,
        "follow": follow.follow,
    },
    "Guests, such as 'forewarn watch --mine'": {"watch": guest.watch, "record": testing.record},
    "Agent, such as 'forewarn agent run'": {"agent": agent.commands},
    "Tools, such as 'forewarn completion bash'": {
        "emulator": testing.emulator,
        "certify": testing.certify,
        "doctor": doctor.doctor,
        "demo": demo.demo,
        "completion": completion,
    },
}
"""The commands and groups as --help has them: in sections, each with an example."""

COMMANDS: Final = {name: each for section in SECTIONS.values() for name, each in section.items()}

_UNPROTECTED: Final = ("--no-", "--without-", "--re-add", "--insecure", "--prune")
"""The beginnings of options that remove a protection: no typing error is answered with them."""

ABSENT: Final = {
    "forewarn host drain --notice": "a drain has no notice of its own, each move has the least "
    "notice of its type"
}
"""Why a command lacks an option that one like it has."""


class CommandLine(CommandGroup):
    """The whole command line: its help has the commands in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands."""
        del ctx
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), each.get_short_help_str(MAX_LINE - width))
                        for name, each in commands.items()
                    ]
                )


def _version(context: click.Context, _: click.Parameter, given: object) -> None:
    if given:
        from forewarn.version import __version__

        output.say(f"{NAME} {__version__}")
        context.exit()


FOREWARN: Final = CommandLine(
    NAME,
    commands=COMMANDS,
    help="Notice of maintenance for virtual machines, and their approval.",
    epilog=READ_ON,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version and exit.",
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
"""The whole command line."""


def execute(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit status. Errors are printed on stderr, a line each."""
    try:
        if asked := os.environ.get(COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(FOREWARN, {}, NAME, COMPLETE, asked)
        with FOREWARN.make_context(NAME, list(arguments)) as context:
            FOREWARN.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except Failed as failed:
        for line in failed.message.splitlines():
            output.note(output.printable(f"{NAME}: {line}"))  # it may be a server's word
        return failed.status
    except click.ClickException as error:
        output.note(_usage(error))
        return ExitStatus.USAGE
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        return ExitStatus.BROKEN_PIPE
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        told = (
            f"internal error: {type(error).__name__}: {error}; {TRACEBACK_VARIABLE}=1 shows where"
        )
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            told = f"cannot write its output or a file: {error.strerror}"
        output.note(f"{NAME}: {told}")
        return ExitStatus.INTERNAL
    return ExitStatus.OK


def run() -> None:
    """Run the command line of this process, and end the process.

    Ctrl-C raises KeyboardInterrupt within a command alone: before and after it tells nobody.
    """
    if hasattr(signal, "SIGCHLD"):  # where it is ignored, as inherited, no program has a status
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output.open_streams()
    status: int = ExitStatus.INTERRUPTED
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    names = () if is_ignored else ("SIGINT",)
    with contextlib.suppress(KeyboardInterrupt), handled(signal.default_int_handler, *names):
        status = execute(sys.argv[1:])
    output.close_streams()
    sys.exit(status)


def _usage(error: click.ClickException) -> str:
    """Return the mistake of a command line in one line, and where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else NAME
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    line = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption):
        line = f"{error.message.rstrip('.')}{_instead(path, error)}"
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        assert context is not None
        usage = " ".join(context.get_usage().replace("[OPTIONS] ", "").split()[1:])
        line += f"; expected '{usage}'"
    stop = "" if line.endswith("?") else "."
    return f"{NAME}: {line}{stop} See '{path} --help'."


def _instead(path: str, error: click.NoSuchOption) -> str:
    """Return why a command lacks an option, or which ones are similar to it."""
    given = error.option_name
    if why := ABSENT.get(f"{path} {given}"):
        return f": {why}"
    similar = [
        repr(name)
        for name in error.possibilities or ()
        if given.startswith(_UNPROTECTED) or not name.startswith(_UNPROTECTED)
    ]
    return f". Did you mean {' or '.join(similar)}?" if similar else ""
