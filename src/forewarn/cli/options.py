"""The options and arguments of commands, as values, and how what people type is read."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from forewarn.server.operator import fields
from forewarn.server.operator.fields import Control, Field

Kind = click.ParamType[Any] | Callable[[str], object]
"""A reader of a value that was typed; its ValueError says what was expected."""


FILE: Final = click.Path(readable=False, path_type=Path)
"""A path that click does not try to read: the code that opens it reports why it cannot be read."""
TEXT: Final = click.Path(readable=False)
"""A text that may be a path: shells complete it as one."""


def text(typed: str) -> str:
    """Read a text: what is no UTF-8 cannot be sent."""
    try:
        typed.encode()
    except UnicodeEncodeError as error:
        message = f"expected text in UTF-8, not {typed!r}"
        raise ValueError(message) from error
    return typed


def name(typed: str) -> str:
    """Read a name: with "", an unset variable of a script, one host would be the list of all."""
    return text(fields.filled(typed))


KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("CURSOR", "ID", "TEXT"), text),
    "FILE": FILE,
    "DATABASE": TEXT,
    **fields.READERS,
}
"""The readers of values with these names; any other is a text that is not empty."""


class Choice(click.Choice[str]):
    """One of several words, of an enum or not, typed in any case."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__(tuple(words), case_sensitive=False)

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return a word in lower case, as help, errors and completion have it."""
        del ctx
        return str(choice).lower()


def flag(spec: str, about: str) -> click.Option:
    """Declare an option without a value: `--name`, or `--name parameter`."""
    return click.Option(spec.split(), is_flag=True, help=about)


def option(
    spec: str,
    about: str,
    kind: Kind | None = None,
    **more: Any,  # noqa: ANN401 - click's
) -> click.Option:
    """Declare an option with a value: `--name VALUE`, or `--name VALUE parameter`.

    `VALUE...` may be repeated. Without a `kind`, a value is read as KINDS says of its name.
    """
    label, metavar, *parameter = spec.split()
    value = metavar.removesuffix("...")
    if value != metavar:
        about += " Repeatable."
    return click.Option(
        [label, *parameter],
        metavar=value,
        help=about,
        type=kind or KINDS.get(value, name),
        multiple=value != metavar,
        **more,
    )


def argument(spec: str, about: str, kind: Kind | None = None) -> click.Argument:
    """Declare an argument: `parameter VALUE`. `[X]` may be left out, `X...` takes several."""
    parameter, _, metavar = spec.partition(" ")
    return click.Argument(
        [parameter],
        metavar=metavar,
        help=about,
        type=kind or KINDS.get(metavar, name),
        nargs=-1 if "..." in metavar else 1,
        required=not metavar.startswith("["),
    )


def of_field(field: Field) -> click.Option:
    """Declare the option of a field of a request; left out, it is None, False or empty."""
    spec = f"{field.option}{'...' * field.several} {field.name}"
    if field.control is Control.CHECK:
        return flag(spec, field.help)
    kind: Kind | None = None if field.read is str else field.read
    default = field.default
    if field.control is Control.CHOICE:
        kind, default = Choice(value for value, _ in field.choices), default.lower()
    about = f"{field.help} Default: {default}." if default else field.help

    def gather(_: click.Context, __: click.Parameter, texts: Sequence[object]) -> object:
        try:
            return field.gather(texts)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return option(spec, about, kind, **({"callback": gather} if field.several else {}))


JSON: Final = flag("--json as_json", "Print JSON.")
OPERATOR: Final = option(
    "--operator ADDRESS address",
    "The operator plane: the path of a unix socket, HOST:PORT, or a URL. "
    "Default: where 'forewarn serve' listens.",
    TEXT,
    envvar="FOREWARN_OPERATOR",
    show_envvar=True,
)
PAGES: Final = (
    option("--limit N", "Entries on one page, at most 1000.", fields.within(1, 1000), default=100),
    option("--cursor CURSOR", "The cursor printed below the page before."),
    flag("--all whole", "Show all pages."),
)
REASON: Final = of_field(fields.REASON)
DRY_RUN: Final = flag("--dry-run", "Only show what would happen.")
CONFIG: Final = option(
    "--config FILE",
    "The service's settings, TOML. Default: FOREWARN_CONFIG, the user's own file, "
    "or /etc/forewarn/forewarn.toml.",
)
METADATA: Final = option(
    "--endpoint URL",
    "The metadata endpoint. Default: FOREWARN_ENDPOINT, else http://169.254.169.254.",
)
TYPES: Final = option(
    "--type TYPE... types",
    "Only news of this type, such as operation.failed, or of a kind, such as maintenance.",
)
WAIT: Final = flag(
    "--wait", "Show what changes until it is over, or needs an operator: exit status 11."
)
