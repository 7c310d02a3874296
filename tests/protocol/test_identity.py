"""Whom a proxy speaks for: signed as OpenStack's metadata agent signs, or refused."""

import hashlib
import hmac

import pytest

from forewarn.protocol import exchange, refusals
from forewarn.protocol.exchange import Claim, GetDocument, GetInstance, Peer, Rules
from forewarn.protocol.message import HttpRequest, Reply
from protocol import world
from protocol.world import EVENTS, HEADER, PROXY, SECRET, World, get, signed

ID = b"02aab8a4-74ef-476e-8182-f6d2ba4166a6"
OTHER = b"another secret of sixteen bytes"


def judge(*headers: tuple[bytes, bytes], peer: Peer = PROXY, target: bytes = EVENTS) -> object:
    return exchange.judge(HttpRequest(b"GET", target, HEADER + headers), peer, Rules())


def error(reply: object) -> tuple[int, bytes]:
    assert isinstance(reply, Reply)
    return reply.status, reply.body


def refused(refusal: refusals.Refusal) -> tuple[int, bytes]:
    return refusal.status, b'{"error":"%s"}' % refusal.text.encode()


def test_it_signs_as_openstacks_agent_and_openssl_do() -> None:
    assert exchange.sign(ID, SECRET).decode() == hmac.new(SECRET, ID, hashlib.sha256).hexdigest()
    # printf %s web-0 | openssl dgst -sha256 -hmac 0123456789abcdef
    known = b"ada9bdbe0a794214d1c5a9f68e59975c47565eb87971b5474f9bd873eac27c5e"
    assert exchange.sign(b"web-0", b"0123456789abcdef") == known


def test_any_of_the_secrets_will_do_and_no_other() -> None:
    claim = Claim(ID, exchange.sign(ID, SECRET))
    assert exchange.is_signed(claim, [OTHER, SECRET])
    assert exchange.is_signed(claim, [SECRET, OTHER])
    assert not exchange.is_signed(claim, [OTHER])
    assert not exchange.is_signed(claim, [])
    assert exchange.is_signed(Claim(ID, claim.signature.upper()), [SECRET])


@pytest.mark.parametrize(
    "signature", [b"", b"0" * 64, b"\xff" * 64, exchange.sign(ID, SECRET)[:-1]]
)
def test_a_signature_of_any_bytes_is_judged(signature: bytes) -> None:
    assert not exchange.is_signed(Claim(ID, signature), [SECRET])


def test_the_signature_is_of_exactly_the_id_that_was_sent() -> None:
    signature = exchange.sign(ID, SECRET)
    assert not exchange.is_signed(Claim(ID.upper(), signature), [SECRET])
    headers = [
        (exchange.INSTANCE_ID, b" " + ID + b" "),
        (exchange.INSTANCE_SIGNATURE, signature),
    ]
    claim = exchange.claim(headers)
    assert claim == Claim(ID, signature)


def test_a_proxys_request_names_its_machine_whatever_else_it_carries() -> None:
    told = judge(*signed(ID), (b"X-Tenant-ID", b"t"), (b"X-Forwarded-For", b"10.0.0.99"))
    assert isinstance(told, GetDocument)
    assert told.machine == Claim(ID, exchange.sign(ID, SECRET))
    tree = judge(*signed(ID), target=b"/metadata/instance?api-version=2021-02-01")
    assert isinstance(tree, GetInstance)
    assert tree.machine == told.machine
    assert get(EVENTS, *signed(b"web-0"), world=World(peer=PROXY)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        (),
        signed(ID)[:1],
        signed(ID)[1:],
        (*signed(ID), *signed(ID)),
        (*signed(ID), (b"x-instance-id", ID)),
        (*signed(ID), signed(ID)[1]),
        (signed(ID)[0], signed(ID)[0]),
        ((b"X-Forwarded-For", b"10.0.0.10"),),
    ],
    ids=["none", "unsigned", "no-id", "twice", "id-twice", "signature-twice", "two-ids", "address"],
)
def test_a_trusted_proxy_that_does_not_say_once_who_asks_is_refused(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    assert error(judge(*headers)) == refused(refusals.UNSIGNED)
    # Also where its own address is a machine's: a guest behind it must never be that machine.
    there = World(peer=Peer(address=world.ADDRESS, trusted_proxy=True))
    assert error(get(EVENTS, *headers, world=there)) == refused(refusals.UNSIGNED)


@pytest.mark.parametrize("peer", [world.GUEST, world.STRANGER, world.LOOPBACK])
@pytest.mark.parametrize("headers", [signed(ID), signed(ID)[:1], signed(ID)[1:]])
def test_nobody_else_may_say_who_asks(peer: Peer, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert error(judge(*headers, peer=peer)) == refused(refusals.NO_TRUSTED_PROXY)


@pytest.mark.parametrize("headers", [signed(b"web-0", OTHER), signed(b"web-9"), signed(b"")])
def test_a_wrong_signature_and_an_unknown_machine_are_answered_alike(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    there = World(peer=PROXY)
    assert error(get(EVENTS, *headers, world=there)) == refused(refusals.UNKNOWN_INSTANCE)


def test_the_header_is_wanted_of_a_proxy_too_unless_it_is_known_to_drop_it() -> None:
    request = HttpRequest(b"GET", EVENTS, signed(ID))
    assert error(exchange.judge(request, PROXY, Rules()))[1].count(b"metadata header") == 1
    dropping = Peer(address="192.0.2.7", trusted_proxy=True, without_header=True)
    assert isinstance(exchange.judge(request, dropping, Rules()), GetDocument)
