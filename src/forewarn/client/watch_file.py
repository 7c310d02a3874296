"""The file in which a watch keeps its state over the end of its process."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final, TypeAlias

from forewarn.client.event import Misuse, Trouble

MAX_STATE_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of the file of `since`: the largest document makes no longer one."""

SavePath: TypeAlias = str | os.PathLike[str]
"""The file of `since`."""

NOT_SAVED, SAVED = "not-saved", "saved"
"""The reasons of the troubles that the file of `since` cannot be written, and can be again."""

WRONG: Final = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)
"""Errors that somebody has to mend, such as a wrong path. Any other is of a disk that is full or
read-only after a fault, or of a system that is short of files: the watch goes on, and tries again.
"""


class WatchFile:
    """The file in which a watch keeps its state, for the next process; it is always whole.

    A relative path begins in the folder that systemd gives the handler (`StateDirectory=`), or in
    the current one.

    Raises:
        Misuse: It cannot be read or written, for a reason that does not pass by itself.
    """

    def __init__(self, path: SavePath) -> None:
        folder = os.environ.get("STATE_DIRECTORY", "").partition(os.pathsep)[0]
        self.path = Path(os.path.realpath(Path(folder, path)))
        self.text: str | None = None
        """Its content, or the text that was last to be written; None if there is no file yet."""
        self._failed = False
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_STATE_BYTES + 1)
            self.text = content.decode()  # what is cut off here makes the JSON invalid
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error

    def check(self, text: str) -> None:
        """Write a first text; Misuse if the path is wrong, but a full disk is a trouble."""
        error = self._write(text)
        if error is not None and error.errno in WRONG:
            raise self._unusable(error) from error
        self.text, self._failed = None if error else text, False

    def write(self, text: str) -> Trouble | None:
        """Replace its text by another; return the trouble if that is news."""
        error = self._write(text)
        failed, self._failed, self.text = self._failed, error is not None, text
        if error is not None and not failed:
            message = (
                f"cannot save the state of the watch in {self.path}: {error.strerror or error}; "
                "after a restart, changes may be reported again, or not at all"
            )
            return Trouble(reason=NOT_SAVED, message=message)
        if error is None and failed:
            return Trouble(reason=SAVED, message=f"the watch saves its state in {self.path} again")
        return None

    def try_again(self) -> None:
        """Count a text that could not be written as not written yet."""
        if self._failed:
            self.text = None

    def _write(self, text: str) -> OSError | None:
        draft = self.path.with_name(f"{self.path.name}.new")
        try:
            with draft.open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
            if os.name != "nt":  # whose file system journals names itself
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            return error
        return None

    def _unusable(self, error: Exception) -> Misuse:
        why = error.strerror if isinstance(error, OSError) else f"not UTF-8 text: {error}"
        return Misuse(f"cannot use the file {self.path} (since): {why}")
