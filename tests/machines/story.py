"""Stories of a machine as a console has them: `$` and a command that succeeds, `!` one that fails.

`=` is all that the last one printed, and `~` is a part of it. Other verbs do to the machine, or to
its service, what no command in it can.
"""

import json

from machines.machine import FILES_HERE, Machine
from machines.site import UNITS, Site
from recipes import pages
from stories import Told


def text_of(name: str) -> str:
    """Return a file of this folder's, or a packaged unit."""
    own = FILES_HERE / name
    return (own if own.exists() else UNITS / name).read_text(encoding="utf-8")


class MachineStory(Told):
    """A machine so far, with the site that it stands in, if there is one."""

    def __init__(self, machine: Machine, site: Site | None = None) -> None:
        self.machine = machine
        self.site_ = site
        self._said = self._kept = ""

    def carry_out(self, row: str) -> None:
        sign, _, told = row.partition(" ")
        match sign:
            case "$":
                self._said = self.machine.run("sh", "-c", told).strip()
            case "!":
                assert self.machine.call("sh", "-c", told).returncode != 0
            case "=":
                assert self._said == told, self._said
            case "~":
                assert told in self._said, self._said
            case "until":
                self.machine.until(told)
            case _:
                super().carry_out(row)

    def keep(self) -> None:
        """Remember what the last command printed."""
        self._kept = self._said

    def kept(self) -> None:
        """The last command has printed what was kept, whatever it printed beside it."""
        assert self._kept
        assert self._kept in self._said

    def answered(self) -> None:
        """The service knows the event of the maintenance that a command printed last."""
        (operation,) = json.loads(self._said)["operations"]
        assert operation["events"][0]["id"] in self.machine.run("forewarn", "events", "--json")

    def write(self, path: str, name: str) -> None:
        self.machine.write(path, text_of(name))

    def write_block(self, path: str, page: str, language: str, words: str) -> None:
        """Write what a page of the docs has."""
        self.machine.write(path, pages.block(page, language, words))

    def run_block(self, page: str, language: str, words: str) -> None:
        """Run what a page of the docs has."""
        self._said = self.machine.run("sh", "-c", pages.block(page, language, words))

    def cut(self) -> None:
        """Cut the machine's power; it is up again at the next line."""
        self.machine.cut()

    # The service beside it.

    @property
    def _site(self) -> Site:
        assert self.site_ is not None
        return self.site_

    def announce(self, event_type: str) -> None:
        """Announce maintenance that does nothing to the machine."""
        self._site.announce(event_type)

    def started(self, cause: str) -> None:
        self._site.status_is("Started")
        assert self._site.operation()["start_cause"] == cause

    def end(self) -> None:
        """Let maintenance end; the agent has heard of it at the next line."""
        self._site.end()
