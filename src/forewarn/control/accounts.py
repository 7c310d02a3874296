"""Operators' tokens, and the record of operators' requests, in the transaction of their change."""

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from forewarn.control.unit_of_work import Job, UnitOfWork
from forewarn.control.writer import Writer
from forewarn.maintenance.accounts import DONE, TOKEN_FILE, AuditRecord, Deed, Token
from forewarn.maintenance.model import Changes, Hold, Refused, unknown
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience

MAX_DETAIL: Final = 500
"""The most characters of a record's detail; the change itself is in the history."""

MAX_ACTION: Final = 300
"""The most characters of a record's action: a path may name anything."""


MAX_TOKENS: Final = 1000
"""The most operators' tokens: they are in the memory of each replica."""

MAX_PAGE_TOKENS: Final = 20
"""The most tokens for the page that an account has; the oldest goes for one more."""


@dataclass(eq=False, kw_only=True)
class OperatorRequest:
    """One request to the operator plane: the caller, and the subject."""

    by: str
    """`""` where nobody is known."""
    role: AccessRole | None
    address: str
    action: str
    request: str
    token: Token | None = None
    """The token that it came with; None on the unix socket."""
    detail: str = ""
    deed: str = ""
    """The kind of request, as `AuditRecord` has it."""
    recorded: bool = False
    """True if the audit log has it, or need not have it."""
    outcome: str = DONE

    def record(self, at: datetime, outcome: str) -> AuditRecord:
        """Return the record for the audit log."""
        return AuditRecord(
            at=at,
            by=_one_line(self.by, MAX_ACTION),
            role=self.role,
            address=self.address,
            action=_one_line(self.action, MAX_ACTION),
            detail=_one_line(self.detail, MAX_DETAIL),
            outcome=outcome,
            request=self.request,
            deed=self.deed,
        )


def expired(hold: Hold, at: datetime) -> AuditRecord:
    """Return the record of a hold that has ended by itself, as its author ordered."""
    return AuditRecord(at=at, by=hold.by, deed=Deed.EXPIRE, detail=str(hold), outcome=DONE)


Describe: TypeAlias = Callable[[Any], str]
"""Returns the detail of a record from the result of a change; `""` for that of the request."""


def submit(writer: Writer, job: Job, request: OperatorRequest, describe: Describe) -> "Future[Any]":
    """Submit a job of a request: its changes and the record of it are one transaction.

    A token that was revoked meanwhile changes nothing, whichever replica the request has reached.
    """

    def audited(unit: UnitOfWork) -> object:
        token = request.token
        # By its value, as another one may have the name; the file's is not in the store.
        if token and token.name != TOKEN_FILE and unit.world.tokens.get(token.name) != token:
            message = f"the token {token.name!r} was revoked"
            raise Refused(ErrorCode.UNAUTHORIZED, message, token=token.name)
        result = job(unit)
        request.detail = describe(result) or request.detail
        unit.note(request.record(unit.now, DONE))
        return result

    def ended(future: "Future[Any]") -> None:
        request.recorded = request.recorded or future.exception() is None

    future = writer.submit(audited)
    future.add_done_callback(ended)
    return future


def create_token(unit: UnitOfWork, token: Token) -> Token:
    """Keep a new token; its name must be free."""
    known = unit.world.tokens
    if token.name == TOKEN_FILE:
        message = f"at name: {TOKEN_FILE!r} is the account of operator.token_file"
        raise Refused(ErrorCode.CONFLICT, message, token=token.name)
    if token.name in known:
        message = f"there is a token {token.name!r} already: revoke it first, or name another"
        raise Refused(ErrorCode.CONFLICT, message, token=token.name)
    if token.role is AccessRole.RELAY:
        message = "at role: 'forewarn relay token HOST' makes the token of a relay"
        raise Refused(ErrorCode.INVALID, message, where="role")
    _judge_room(sum(not each.host for each in known.values()))
    if token.expired(unit.now):
        message = "at expires_at: expected a time in the future"
        raise Refused(ErrorCode.INVALID, message, where="expires_at")
    made = unit.world.tokens[token.name] = msgspec.structs.replace(token, created_at=unit.now)
    return made


def create_page_token(unit: UnitOfWork, token: Token) -> Token:
    """Keep a token for the page; expired ones go, and the account's oldest for one too many."""
    tokens = unit.world.tokens.values()
    known = [each for each in tokens if each.audience is TokenAudience.PAGE]
    own = [each for each in known if each.account == token.account and not each.expired(unit.now)]
    own.sort(key=attrgetter("created_at"))
    over = {each.name for each in known if each.expired(unit.now)}
    over.update(each.name for each in own[: max(0, len(own) - MAX_PAGE_TOKENS + 1)])
    _judge_room(sum(not each.host for each in tokens) - len(over))
    unit.take(Changes(tokens=(token,), revoked_tokens=tuple(sorted(over))))
    return token


def renew_secret(unit: UnitOfWork, token: Token, digest: str) -> Token:
    """Give a token another secret, once: the one before is spent."""
    if unit.world.tokens.get(token.name) != token:
        raise spent_link()
    renewed = unit.world.tokens[token.name] = msgspec.structs.replace(token, digest=digest)
    return renewed


def spent_link() -> Refused:
    """Return the refusal of a link that was already used to log in."""
    message = "the link was used already, or has ended: run 'forewarn page' for another"
    return Refused(ErrorCode.UNAUTHORIZED, message)


def revoke_tokens(unit: UnitOfWork, names: Collection[str]) -> tuple[Token, ...]:
    """Revoke tokens, all or none; requests with one are refused from then on.

    The tokens for the page of an account with such a name go too, also where it has no other token.
    """
    known = [token for token in unit.world.tokens.values() if not token.host]
    revoked = tuple(token for token in known if {token.name, token.account} & {*names})
    found = {name for token in revoked for name in (token.name, token.account)}
    if missing := [name for name in names if name not in found]:
        raise unknown("token", *missing)
    for token in revoked:
        del unit.world.tokens[token.name]
    return revoked


def _judge_room(tokens: int) -> None:
    if tokens >= MAX_TOKENS:
        message = f"there are {tokens} tokens, at most {MAX_TOKENS} allowed: revoke some"
        raise Refused(ErrorCode.LIMIT, message, tokens=tokens, most=MAX_TOKENS)


def _one_line(text: str, most: int) -> str:
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."
