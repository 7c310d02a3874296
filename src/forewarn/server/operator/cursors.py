"""Where a page of names ended, as the cursor of the next one.

It carries the last name, so pages neither repeat nor skip an entry while others come and go, and
the list that it is of. People are to see it as opaque, and whatever is none of ours is refused: a
mistyped cursor must not answer some page or other.
"""

import base64
import binascii
from typing import Final

from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode

MAX_CURSOR: Final = 200
"""The most characters of a cursor; ours have at most 124: a name has 80 characters at most."""


def after(kind: str, name: str) -> str:
    """Return the cursor of what comes after this entry.

    Args:
        kind: Which list: `machines`, `scopes`, `lost`.
        name: The key of the page's last entry; `""` where nothing comes after it.
    """
    if not name:
        return ""
    return base64.urlsafe_b64encode(f"{kind}/{name}".encode()).decode().rstrip("=")


def place(kind: str, cursor: str) -> str:
    """Return the key of the entry after which a page begins; `""` for the first page.

    Args:
        kind: Which list.
        cursor: What `after` returned, or `""`.

    Raises:
        Refused: INVALID: it is none of ours, or another list's.
    """
    if not cursor:
        return ""
    written, _, name = _plain(cursor).partition("/")
    if written != kind or not name:
        message = (
            f"the cursor {cursor[:MAX_CURSOR]!r} is none of a page of {kind}: pass the cursor of "
            "the page before as it is, or none for the first page"
        )
        raise Refused(ErrorCode.INVALID, message, cursor=cursor[:MAX_CURSOR])
    return name


def _plain(cursor: str) -> str:
    if len(cursor) > MAX_CURSOR:
        return ""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
