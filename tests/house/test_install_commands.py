"""No page and no message names a command that cannot work before the first release."""

import re
from pathlib import Path

from house import tree

INSTALL = re.compile(
    r"\b(?:pip3? install|pipx (?:install|run)|uvx|uv (?:add|pip install|tool (?:install|run))"
    r"|apt(?:-get)? install|(?:docker|podman) (?:image )?pull)\b(?P<arguments>[^`\n&;|]*)"
)
BY_NAME = re.compile(r"(?<![\w./-])forewarn(?:-agent)?+(?:\[[\w,-]*\])?+(?![\w./-])(?! @ )")
"""The package of that name: neither a path, nor `forewarn[server] @ git+https://...`."""
OF_A_RELEASE = re.compile(r"\bgh (?:release|attestation)\b|/releases/(?:latest|download)\b")
PROMISE = re.compile(
    r"It is not on a package index yet; once it is released, `pip install 'forewarn\[server\]'`"
)
"""The one sentence that may: it says itself that the command does not work yet."""

PROMISED = ("README.md", "docs/guides/install.md")
FOLDERS = ("docs", "packaging", "src")
RELEASED = any(
    "not released yet" not in line
    for line in tree.lines_of(tree.ROOT / "CHANGELOG.md")
    if re.match(r"## \d", line)
)


def pages() -> list[Path]:
    folders = [tree.ROOT / folder for folder in FOLDERS]
    return [
        path
        for path in tree.committed_files()
        if path.name == "README.md" or any(path.is_relative_to(folder) for folder in folders)
    ]


def impossible(text: str) -> list[str]:
    """Return the commands that need a release, without those of the promise."""
    whole = PROMISE.sub("", text).replace("\\\n", " ")
    by_name = [m[0] for m in INSTALL.finditer(whole) if BY_NAME.search(m["arguments"])]
    return by_name + OF_A_RELEASE.findall(whole)


def test_a_command_that_needs_a_release_is_found_and_one_from_a_clone_is_not() -> None:
    for text in (
        "`pip install 'forewarn[server]'`",
        "python3 -m pip install --upgrade 'forewarn[server,postgresql]'",
        "pip install \\\n    pytest forewarn==0.1.0",
        "uv tool install --python 3.12 forewarn",
        "uvx forewarn demo",
        "apt-get install -y forewarn-agent",
        "podman pull forewarn",
        "gh attestation verify forewarn.whl",
        "https://github.com/forewarn/forewarn/releases/latest",
    ):
        assert impossible(text), text
    for text in (
        "/opt/forewarn/bin/pip install '.[server]'",
        "pip install 'forewarn[testing] @ git+https://github.com/forewarn/forewarn'",
        "apt install ./dist/forewarn_0.1.0_amd64.deb",
        "pipx uninstall forewarn",
    ):
        assert not impossible(text), text


def test_before_the_first_release_no_page_or_message_names_one_that_needs_it() -> None:
    assert RELEASED or not [
        f"{tree.shown(path)}: {command}"
        for path in pages()
        for command in impossible("\n".join(tree.lines_of(path)))
    ]


def test_two_pages_promise_the_release_until_it_is_there() -> None:
    promises = [
        tree.shown(path)
        for path in pages()
        for _ in PROMISE.findall("\n".join(tree.lines_of(path)))
    ]
    assert sorted(promises) == ([] if RELEASED else sorted(PROMISED))
