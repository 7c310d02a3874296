"""Writes JSON Schemas with which editors complete the files, where a package is built.

They are drawn from the types that read the files, with the first paragraph of each key's section in
docs/reference as its description.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import reference

from forewarn.agent.settings import AgentSettings
from forewarn.maintenance.fleet_file import Fleet
from forewarn.relay.settings import HostRelaySettings
from forewarn.server.settings import Settings

FILES: Final = {
    "agent.json": (AgentSettings, "agent-settings.md", "The settings of forewarn agent."),
    "fleet.json": (Fleet, "fleet-file.md", "Forewarn's fleet file."),
    "relay.json": (HostRelaySettings, "relay-settings.md", "The settings of forewarn relay."),
    "service.json": (Settings, "settings.md", "The settings of forewarn serve."),
}

SECTION: Final = re.compile(r"^###? `([^`]+)`\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def described(page: str) -> dict[str, str]:
    """Return what a page of the reference says first of each key, by its heading."""
    found = {}
    for key, section in SECTION.findall(reference.page(page)):
        paragraphs = [" ".join(each.split()) for each in section.split("\n\n")]
        said = [p for p in paragraphs if p and not p.startswith(("|", "```", "- "))]
        said.sort(key=lambda paragraph: paragraph.startswith("Default: "))
        found[key] = LINK.sub(r"\1", next(iter(said), ""))
    return found


def schema(kind: type, page: str, title: str) -> dict[str, Any]:
    """Return the schema of a file."""
    made = msgspec.json.schema(kind)
    definitions: dict[str, Any] = made["$defs"]
    texts = described("settings.md") | described(page)  # a relay has some of the service's
    root = definitions[kind.__name__]

    def describe(node: dict[str, Any], path: str, above: tuple[str, ...]) -> None:
        """Describe the properties below; a type that is used in two places has both paths."""
        for name, held in node.get("properties", {}).items():
            full = f"{path}.{name}" if path else name
            action = re.sub(r"^rule\[\]\.(?=prepare)", "", full)
            any_action = re.sub(r"\[\]\.\w+\.", "[].(kind).", action)
            found = (texts.get(key) for key in (full, action, any_action, name, f"[[{name}]]"))
            if text := next(filter(None, found), ""):
                held["description"] = text
            below(held, full, above)

    def below(held: dict[str, Any], path: str, above: tuple[str, ...]) -> None:
        for option in (held, *held.get("anyOf", ())):
            if "items" in option:
                below(option["items"], f"{path}[]", above)
            reference = option.get("$ref", "").rpartition("/")[2]
            if reference and reference not in above:
                describe(definitions[reference], path, (*above, reference))

    describe(root, "", (kind.__name__,))
    for one in definitions.values():
        one.pop("title", None)
        one.pop("description", None)
    definitions.pop(kind.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": definitions,
    }


def written() -> dict[str, str]:
    """Return each file's text."""
    return {
        name: json.dumps(schema(kind, page, title), indent=1, ensure_ascii=False) + "\n"
        for name, (kind, page, title) in FILES.items()
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written().items():
        (folder / name).write_text(text, encoding="utf-8")
