"""The steps from an older schema to this release's; `migrate` is called when a store is opened.

    env       what Alembic runs around them
    versions  one file for each step

Alembic is slow to import, so it is imported only where there is something to migrate.
"""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

HEAD = "1"
"""The revision that this release reads and writes; a test holds it to the scripts' newest."""

SCRIPTS = Path(__file__).parent

_TABLE = "alembic_version"
_FOUND = text("SELECT version_num FROM alembic_version")


def revision(connection: Connection) -> str:
    """Return the database's revision, `""` where it has none yet."""
    if not inspect(connection).has_table(_TABLE):
        return ""
    return connection.execute(_FOUND).scalar() or ""


def is_known(found: str) -> bool:
    """Tell whether this release has a way from this revision to its own."""
    if found in {"", HEAD}:
        return True
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - slow, and seldom needed

    return any(script.revision == found for script in ScriptDirectory(SCRIPTS).walk_revisions())


def migrate(connection: Connection) -> None:
    """Bring the database to HEAD, within the connection's transaction.

    Args:
        connection: In a transaction, and so that changes of the schema are part of it.
    """
    if revision(connection) == HEAD:
        return
    from alembic import command  # noqa: PLC0415 - slow, and seldom needed
    from alembic.config import Config  # noqa: PLC0415 - slow, and seldom needed

    config = Config()  # without a file: it sets up no logging and looks at no working directory
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
