"""The instance tree: its subtrees, its leaves, and what is not there."""

import json
from collections.abc import Iterator

import pytest

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
PUBLISHED = """
    azEnvironment additionalCapabilities/hibernationEnabled customData evictionPolicy
    extendedLocation/name extendedLocation/type host/id hostGroup/id isHostCompatibilityLayerVm
    isVmInStandbyPool licenseType location name offer osProfile/adminUsername
    osProfile/computerName osProfile/disablePasswordAuthentication osType physicalZone
    placementGroupId plan/name plan/product plan/publisher platformFaultDomain
    platformSubFaultDomain platformUpdateDomain priority provider publicKeys publisher
    resourceGroupName resourceId securityProfile/encryptionAtHost
    securityProfile/secureBootEnabled securityProfile/securityType
    securityProfile/virtualTpmEnabled sku storageProfile/dataDisks
    storageProfile/imageReference/id storageProfile/imageReference/offer
    storageProfile/imageReference/publisher storageProfile/imageReference/sku
    storageProfile/imageReference/version storageProfile/osDisk/caching
    storageProfile/osDisk/createOption storageProfile/osDisk/diffDiskSettings/option
    storageProfile/imageReference/communityGalleryImageId
    storageProfile/imageReference/exactVersion
    storageProfile/imageReference/sharedGalleryImageId
    storageProfile/osDisk/diskSizeGB storageProfile/osDisk/encryptionSettings/enabled
    storageProfile/osDisk/encryptionSettings/diskEncryptionKey/secretUrl
    storageProfile/osDisk/encryptionSettings/diskEncryptionKey/sourceVault/id
    storageProfile/osDisk/encryptionSettings/keyEncryptionKey/keyUrl
    storageProfile/osDisk/encryptionSettings/keyEncryptionKey/sourceVault/id
    storageProfile/osDisk/image/uri storageProfile/osDisk/managedDisk/id
    storageProfile/osDisk/managedDisk/storageAccountType storageProfile/osDisk/name
    storageProfile/osDisk/osType storageProfile/osDisk/vhd/uri
    storageProfile/osDisk/writeAcceleratorEnabled storageProfile/resourceDisk/size
    subscriptionId tags tagsList userData version virtualMachineScaleSet/id vmId
    vmScaleSetName vmSize zone
"""
"""What Azure's own reference names below `compute`."""
TRUTH_VALUES = [
    "additionalCapabilities/hibernationEnabled",
    "isHostCompatibilityLayerVm",
    "isVmInStandbyPool",
    "osProfile/disablePasswordAuthentication",
    "securityProfile/encryptionAtHost",
    "securityProfile/secureBootEnabled",
    "securityProfile/virtualTpmEnabled",
    "storageProfile/osDisk/encryptionSettings/enabled",
    "storageProfile/osDisk/writeAcceleratorEnabled",
]
NUMBERS = [
    "platformFaultDomain",
    "platformUpdateDomain",
    "storageProfile/osDisk/diskSizeGB",
    "storageProfile/resourceDisk/size",
]
"""A .NET client of the field reads these as numbers, and its whole answer fails on `""`."""


def test_every_value_of_the_tree_is_a_string() -> None:
    assert len(LEAVES) == 16 + 4 + 1 + 8 + 3 + 49
    assert dict(LEAVES)["compute", "name"] == "web-0"
    assert dict(LEAVES)["compute", "tags"] == "role:leader;tier:1"
    assert dict(LEAVES)["network", "interface", "0", "macAddress"] == "000D3A00FA89"


def test_a_typed_client_parses_every_truth_value_and_number() -> None:
    for path in TRUTH_VALUES:
        assert ask(f"/compute/{path}", "&format=text").body in {b"true", b"false"}, path
    for path in NUMBERS:
        assert ask(f"/compute/{path}", "&format=text").body.isdigit(), path


def test_no_field_of_azures_newest_version_is_missing() -> None:
    for path in PUBLISHED.split():
        assert instance.find(TREE, ("compute", *path.split("/"))) is not None


COUNTS = (
    *(11, 11, 15, 15, 17, 17, 19, 21, 22, 23, 23, 24, 25, 25, 25, 25),
    *(27, 28, 29, 29, 31, 32, 32, 34, 34, 34, 35, 36, 38, 38, 38, 39, 40, 40, 40),
)
NAMES = dict(zip(INSTANCE_VERSIONS, COUNTS, strict=True))
"""How many names each version has below `compute`."""


def test_a_version_has_the_names_that_it_and_earlier_ones_brought() -> None:
    for version, count in NAMES.items():
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


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/compute/plan", b'{"name":"","product":"","publisher":""}', b"name\nproduct\npublisher"),
        ("/compute/tagsList/1", b'{"name":"tier","value":"1"}', b"name\nvalue"),
        ("/compute/publicKeys", b"[]", b""),
        (
            "/network/interface/0/ipv6",
            b'{"ipAddress":[{"privateIpAddress":"fd00::10","publicIpAddress":""}]}',
            b"ipAddress/",
        ),
        ("/NETWORK/Interface/00/ipv4/subnet/", b'[{"address":"10.0.0.0","prefix":"24"}]', b"0/"),
    ],
)
def test_a_subtree_is_json_and_the_names_below_it_as_text(
    path: str, body: bytes, names: bytes
) -> None:
    for query in ("", "&format=json", "&format=JSON"):
        assert ask(path, query) == Reply(200, body, JSON)
    assert ask(path, "&format=text") == Reply(200, names, TEXT)


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
    for path in (
        *("compute/nothing", "compute/name/0", "compute/name/web-0", "compute//name"),
        *("compute/name//", "computes", "network/interface/1", "network/interface/-1"),
        *("network/interface/0x0", "network/interface/%C2%B2", "network/interface/%D9%A0"),
        *("network/interface/" + "0" * 10, "network/interface/" + "9" * 5000),
        *("networ%E2%84%AA", "%ff"),
    ):
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
