"""What an installation brings: packages and bytes of the locked versions, as
docs/internals/decisions/0001 has them. Whoever raises a number says there what the growth buys."""

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from house import tree


def packages(extra: str) -> set[str]:
    """Return the names of Forewarn and of all that it requires on this machine."""
    left, seen = [("forewarn", ""), ("forewarn", extra)], set[tuple[str, str]]()
    while left:
        name, wanted = left.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": wanted}):
                other = canonicalize_name(needed.name)
                left += [(other, each) for each in ("", *needed.extras)]
    return {name for name, _ in seen}


def size(name: str) -> int:
    """Return the bytes of a package's files, without bytecode."""
    if name == "forewarn":
        files = (path for path in (tree.ROOT / "src" / "forewarn").rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files if path.suffix != ".pyc")
    return sum(each.size or 0 for each in metadata.files(name) or [])


@pytest.mark.parametrize(
    ("extra", "most", "megabytes"), [("", 8, 10.0), ("server", 21, 30.0), ("relay", 11, 26.0)]
)
def test_an_installation_does_not_grow_unnoticed(extra: str, most: int, megabytes: float) -> None:
    found = packages(extra)
    assert len(found) <= most, found
    sizes = {name: size(name) for name in found}
    assert sum(sizes.values()) <= megabytes * 1e6, sizes
