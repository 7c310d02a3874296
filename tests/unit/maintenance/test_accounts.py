"""Operators' tokens."""

import pytest

from builders import NOW, SECOND
from forewarn.maintenance.accounts import Token
from forewarn.vocabulary import AccessRole


@pytest.mark.parametrize(("seconds", "expired"), [(1, False), (0, True), (-1, True)])
def test_a_token_has_expired_from_its_last_instant_on(seconds: int, *, expired: bool) -> None:
    token = Token(
        name="ann",
        role=AccessRole.VIEWER,
        digest="",
        created_by="root",
        created_at=NOW - SECOND,
        expires_at=NOW + seconds * SECOND,
    )
    assert token.expired(NOW) is expired
