"""The instance tree: its subtrees, its leaves, and what is not there."""

import json
from collections.abc import Iterator

import pytest

import stories
from forewarn.protocol import exchange, instance
from forewarn.protocol.exchange import GetInstance, Rules
from forewarn.protocol.instance import ADDED_IN, INSTANCE_VERSIONS, NotInTree, Tree
from forewarn.protocol.message import HttpRequest, Reply, ascii_lower, ascii_upper, shown
from protocol import cases
from protocol.world import GUEST, HEADER

VERSION = "2025-04-07"
TREE = instance.tree(cases.WHOLE_INSTANCE, VERSION)
JSON = ((b"Content-Type", b"application/json; charset=utf-8"),)
TEXT = ((b"Content-Type", b"text/plain; charset=utf-8"),)


def leaves(here: Tree, *path: str) -> list[tuple[tuple[str, ...], str]]:
    if isinstance(here, str):
        return [(path, here)]
    below = here.items() if isinstance(here, dict) else enumerate(here)
    return [leaf for name, tree in below for leaf in leaves(tree, *path, str(name))]


def ask(path: str, query: str = "", version: str = VERSION) -> Reply:
    target = f"/metadata/instance{path}?api-version={version}{query}".encode()
    wanted = exchange.judge(HttpRequest(b"GET", target, HEADER), GUEST, Rules())
    if isinstance(wanted, Reply):
        return wanted
    assert isinstance(wanted, GetInstance)
    tree = instance.tree(cases.WHOLE_INSTANCE, wanted.version)
    return exchange.instance_reply(wanted, tree)


LEAVES = leaves(TREE)
TOLD = stories.lines_beside(__file__, "instance.txt")


def told(kind: str) -> list[str]:
    """Return the words of the lines of a kind."""
    return [word for line, _ in TOLD for word in line.split()[1:] if line.startswith(f"{kind} ")]


def test_every_value_of_the_tree_is_a_string() -> None:
    assert len(LEAVES) == 16 + 4 + 1 + 8 + 3 + 49
    assert dict(LEAVES)["compute", "name"] == "web-0"
    assert dict(LEAVES)["compute", "tags"] == "role:leader;tier:1"
    assert dict(LEAVES)["network", "interface", "0", "macAddress"] == "000D3A00FA89"


def test_a_typed_client_parses_every_truth_value_and_number() -> None:
    for path in told("truth"):
        assert ask(f"/compute/{path}", "&format=text").body in {b"true", b"false"}, path
    for path in told("number"):
        assert ask(f"/compute/{path}", "&format=text").body.isdigit(), path


def test_no_field_of_azures_newest_version_is_missing() -> None:
    for path in told("published"):
        assert instance.find(TREE, ("compute", *path.split("/"))) is not None


def test_a_version_has_the_names_that_it_and_earlier_ones_brought() -> None:
    names = told("names")
    assert names[::2] == [*INSTANCE_VERSIONS]
    for version, count in zip(names[::2], map(int, names[1::2]), strict=True):
        answer = json.loads(ask("/compute", version=version).body)
        assert len(answer) == count, version
        assert list(answer) == sorted(answer), version
        assert ask("/compute", "&format=text", version).body.count(b"\n") == count - 1, version
        assert ask("/network", version=version) == ask("/network")
        for path, added_in in ADDED_IN.items():
            found = ask("/" + "/".join(path), "&format=text", version)
            assert (found.status == 404) is (version < added_in), (version, path)


def test_only_versions_that_there_are_brought_anything() -> None:
    assert set(ADDED_IN.values()) < set(INSTANCE_VERSIONS)
    paths = {path[:length] for path, _ in LEAVES for length in range(len(path) + 1)}
    lists = {("compute", name) for name in ("publicKeys", "tagsList")}
    assert set(ADDED_IN) <= paths | lists


def test_a_leaf_is_bare_text_with_format_text_and_refused_without() -> None:
    for path, value in LEAVES:
        place = "/" + "/".join(path)
        assert ask(place, "&format=text") == Reply(200, value.encode(), TEXT)
        assert ask(place.upper() + "/", "&FORMAT=Text") == Reply(200, value.encode(), TEXT)
        for query in ("", "&format=json"):
            refused = ask(place, query)
            assert refused.status == 400, place
            assert f"/metadata/instance{place} is a single value".encode() in refused.body


def test_a_subtree_is_json_and_the_names_below_it_as_text() -> None:
    for line, expected in (each for each in TOLD if each[0].startswith("subtree ")):
        path = line.split()[1]
        body, _, names = expected.partition(" |")
        for query in ("", "&format=json", "&format=JSON"):
            assert ask(path, query) == Reply(200, body.encode(), JSON)
        assert ask(path, "&format=text") == Reply(200, "\n".join(names.split()).encode(), TEXT)


def test_a_client_walks_the_tree_by_its_text() -> None:
    def leaves(path: str) -> Iterator[tuple[tuple[str, ...], str]]:
        for name in ask(path, "&format=text").body.decode().splitlines():
            below = f"{path}/{name.removesuffix('/')}"
            if name.endswith("/"):
                yield from leaves(below)
            else:
                yield tuple(below.split("/")[1:]), ask(below, "&format=text").body.decode()

    assert list(leaves("")) == LEAVES


def test_the_whole_tree_is_at_the_root() -> None:
    for path in ("", "/"):
        assert ask(path) == Reply(200, cases.golden("instance/whole.json"), JSON)


def test_what_is_not_in_the_tree_is_not_found() -> None:
    for path in (*told("nowhere"), "network/interface/" + "9" * 5000):
        for query in ("", "&format=text"):
            refused = ask(f"/{path}", query)
            assert (refused.status, refused.body) == (404, b'{"error":"Not found"}'), path


def test_an_index_may_have_nine_digits() -> None:
    assert (
        instance.find(TREE, ("network", "interface", "000000000"))
        == TREE["network"]["interface"][0]
    )  # type: ignore[index,call-overload]
    with pytest.raises(NotInTree, match=r"^0000000000$"):
        instance.find(TREE, ("network", "interface", "0000000000"))


def test_a_tree_without_events_or_tags_has_empty_lists() -> None:
    bare = instance.tree(cases.BARE_INSTANCE, VERSION)
    assert instance.find(bare, ("compute", "tagsList")) == []
    assert instance.find(bare, ("network", "interface", "0", "ipv6", "ipAddress")) == []
    assert instance.find(bare, ()) == bare


def test_an_unknown_format_is_refused_by_name() -> None:
    for form in ("xml", "", "texts", "json ", "\u2126"):
        refused = ask("/compute/name", "&format=" + form)
        assert refused.status == 400
        assert f"format '{form}' is not served: ask for json or text".encode() in refused.body


def test_case_is_that_of_ascii_alone() -> None:
    assert ascii_lower("AZ-K\u212a\u0130") == "az-k\u212a\u0130"
    assert ascii_upper("az-\u00df\u0131") == "AZ-\u00df\u0131"


def test_so_much_of_a_text_is_shown_and_no_more() -> None:
    assert shown("x" * 100) == "x" * 100
    assert shown("x" * 101) == "x" * 100 + "..."
    assert shown("\ud800") == "?"
