"""A hook of MkDocs: the reference is whole, and links that leave docs/ lead to the repository."""

import re
from pathlib import PurePosixPath
from typing import Any, Final

import reference

LINK: Final = re.compile(r"(\]\()((?:\.\./)+[^)\s]+)(\))")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:  # noqa: ANN401
    """Return the page with its marks expanded and such links made absolute."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def absolute(found: re.Match[str]) -> str:
        parts: list[str] = list(folder.parts)
        path, mark, anchor = found[2].partition("#")
        for part in path.split("/"):
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        if parts[0] == "docs" and len(parts) > 1 and PurePosixPath(parts[-1]).suffix:
            return found[0]
        return f"{found[1]}{config.repo_url}/blob/main/{'/'.join(parts)}{mark}{anchor}{found[3]}"

    return LINK.sub(absolute, reference.expanded(markdown))
