"""The relay's settings: which addresses of replicas it takes, and what it says of others."""

import pytest

from forewarn.relay.settings import PORT, replica


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://forewarn-1.example", f"https://forewarn-1.example:{PORT}"),
        ("https://[fd00::1]:443/", "https://[fd00::1]:443"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("http://localhost", f"http://localhost:{PORT}"),
    ],
)
def test_an_address_of_a_replica_is_a_url_with_a_port_of_its_own(url: str, address: str) -> None:
    assert str(replica(url)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "forewarn-1.example:8173",
        "ftp://forewarn-1.example",
        "https://",
        "https://forewarn-1.example:0",
        "https://forewarn-1.example:65536",
        "https://forewarn 1.example",
        "https://forewarn-1.example\n",
        "https://ann:secret@forewarn-1.example",
        "https://forewarn-1.example/v1",
        "https://forewarn-1.example?x=1",
        "http://10.0.0.1",
        "http://forewarn-1.example",
    ],
)
def test_what_is_no_address_of_a_replica_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="invalid URL"):
        replica(url)
