"""How commands declare their options and arguments, and those that several commands have."""

from typing import Annotated, Any

import typer


def flag(name: str, text: str) -> Any:  # noqa: ANN401 - as Typer's own
    """Declare an option without a value."""
    return typer.Option(name, help=text)


def option(name: str, metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - likewise
    """Declare an option with a value."""
    return typer.Option(name, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - likewise
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)


OperatorOption = Annotated[
    str | None,
    option(
        "--operator",
        "ADDRESS",
        "The operator plane: the path of a unix socket, HOST:PORT, or a URL. "
        "Default: where 'forewarn serve' listens.",
        envvar="FOREWARN_OPERATOR",
    ),
]
JsonOption = Annotated[bool, flag("--json", "Print one JSON document.")]
LimitOption = Annotated[int, option("--limit", "N", "Entries on one page.", min=1, max=1000)]
CursorOption = Annotated[
    str, option("--cursor", "CURSOR", "The cursor printed below the page before.")
]
AllOption = Annotated[bool, flag("--all", "Show all pages.")]
ReasonOption = Annotated[str, option("--reason", "TEXT", "Why; the history records it.")]
MetadataOption = Annotated[
    str | None,
    option(
        "--endpoint",
        "URL",
        "The metadata endpoint. Default: FOREWARN_ENDPOINT, else http://169.254.169.254.",
    ),
]
