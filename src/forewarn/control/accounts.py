"""Operators' tokens, and the record of what operators ask, in the transaction of their change."""

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from forewarn.control.unit_of_work import Decide, UnitOfWork, Work
from forewarn.control.writer import Job, Writer
from forewarn.maintenance.accounts import DONE, AuditRecord, Token
from forewarn.maintenance.model import Changes, Refused, unknown
from forewarn.store.port import Reading
from forewarn.vocabulary import AccessRole, ErrorCode

T = TypeVar("T")

MAX_DETAIL: Final = 500
"""The most characters of a record's detail; the change itself is in the history."""

MAX_ACTION: Final = 300
"""The most characters of a record's action: a path may name anything."""


MAX_TOKENS: Final = 1000
"""The most operators' tokens: they are in the memory of each replica."""

MAX_SESSIONS: Final = 20
"""The most browsers that an account is logged in with; the oldest session ends for one more."""

MAX_LINKS: Final = 100
"""The most links to the page that nobody has used; the oldest goes for one more."""


@dataclass(eq=False, kw_only=True)
class OperatorRequest:
    """One request to the operator plane: who sends it, and what it is about."""

    by: str
    """`""` where nobody is known."""
    role: AccessRole | None
    address: str
    action: str
    request: str
    token: str = ""
    """The name of the stored token that it came with; `""` for any other way in."""
    detail: str = ""
    """What it is about, once somebody has looked."""
    recorded: bool = False
    """Whether the audit log has it, or need not have it."""
    outcome: str = DONE

    def record(self, at: datetime, outcome: str) -> AuditRecord:
        """Return what the audit log is to have."""
        return AuditRecord(
            at=at,
            by=_one_line(self.by, MAX_ACTION),
            role=self.role,
            address=self.address,
            action=_one_line(self.action, MAX_ACTION),
            detail=_one_line(self.detail, MAX_DETAIL),
            outcome=outcome,
            request=self.request,
        )


class AuditedWriter:
    """A writer for one request: what it changes and the record of it are one transaction.

    A token that was revoked meanwhile changes nothing, whichever replica the request has reached.
    """

    def __init__(
        self, writer: Writer, request: OperatorRequest, describe: Callable[[Any], str]
    ) -> None:
        self._writer = writer
        self._request = request
        self._describe = describe

    def submit(self, job: Job) -> "Future[Any]":
        """Submit the job, and the record with it."""
        request = self._request

        def audited(unit: UnitOfWork) -> Work[Any]:
            if request.token and request.token not in unit.tokens():
                message = f"the token {request.token!r} was revoked"
                raise Refused(ErrorCode.UNAUTHORIZED, message, token=request.token)
            work = job(unit)
            request.detail = self._describe(work.result) or request.detail
            unit.note(request.record(unit.now, DONE))
            return work

        def ended(future: "Future[Any]") -> None:
            request.recorded = request.recorded or future.exception() is None

        future = self._writer.submit(audited)
        future.add_done_callback(ended)
        return future

    def read(self, question: Callable[[Reading], T]) -> "Future[T]":
        """Ask the store; that changes nothing, and is not recorded."""
        return self._writer.read(question)

    def close(self) -> None:
        """Do nothing: the writer within goes on."""


def create_token(unit: UnitOfWork, _: Decide, token: Token) -> Work[Token]:
    """Keep a new token; its name must be free."""
    known = unit.tokens()
    if token.name in known:
        message = f"there is a token {token.name!r} already: revoke it first, or name another"
        raise Refused(ErrorCode.CONFLICT, message, token=token.name)
    _judge_room(len(known))
    if token.expired(unit.now):
        message = "at expires_at: expected a time in the future"
        raise Refused(ErrorCode.INVALID, message, where="expires_at")
    made = msgspec.structs.replace(token, created_at=unit.now)
    return Work(made, Changes(tokens=(made,)))


def make_link(unit: UnitOfWork, _: Decide, link: Token) -> Work[Token]:
    """Keep a link to the page; sessions and links that are over go, and the oldest link."""
    links = [token for token in unit.tokens().values() if token.link]
    return _begun(unit, link, links, MAX_LINKS)


def open_session(unit: UnitOfWork, _: Decide, session: Token, link: str) -> Work[Token]:
    """Log an account in to the page by a link; sessions that are over go, and its oldest.

    The session ends with the account's token.
    """
    tokens = unit.tokens()
    if link not in tokens:
        raise spent_link()
    owner = tokens.get(session.account)
    ends = [each.expires_at for each in (session, owner) if each and each.expires_at]
    session = msgspec.structs.replace(session, expires_at=min(ends))
    own = [t for t in tokens.values() if t.session and not t.link and t.account == session.account]
    return _begun(unit, session, own, MAX_SESSIONS, link)


def spent_link() -> Refused:
    """Return the refusal of a link that begins no session any more."""
    message = "the link was used already, or is too old: run 'forewarn page' for another"
    return Refused(ErrorCode.UNAUTHORIZED, message)


def _begun(
    unit: UnitOfWork, new: Token, like: Collection[Token], most: int, *spent: str
) -> Work[Token]:
    tokens = unit.tokens().values()
    over = {*spent, *(token.name for token in tokens if token.session and token.expired(unit.now))}
    left = [token for token in like if token.name not in over]
    left.sort(key=attrgetter("created_at"))
    over.update(token.name for token in left[: max(0, len(left) - most + 1)])
    _judge_room(len(tokens) - len(over))
    return Work(new, Changes(tokens=(new,), revoked_tokens=tuple(sorted(over))))


def revoke_tokens(unit: UnitOfWork, _: Decide, names: Collection[str]) -> Work[tuple[Token, ...]]:
    """Revoke tokens, all or none; whoever has one is refused from then on.

    The sessions of their holders end too; a name may be that of an account that has sessions alone.
    """
    known = unit.tokens()
    accounts = {token.account for token in known.values() if token.session}
    if missing := [name for name in names if name not in known and name not in accounts]:
        raise unknown("token", *missing)
    revoked = {name: known[name] for name in names if name in known}
    for token in known.values():
        if token.session and token.account in names:
            revoked[token.name] = token
    return Work(tuple(revoked.values()), Changes(revoked_tokens=tuple(revoked)))


def _judge_room(tokens: int) -> None:
    if tokens >= MAX_TOKENS:
        message = f"there are {tokens} tokens, at most {MAX_TOKENS} allowed: revoke some"
        raise Refused(ErrorCode.LIMIT, message, tokens=tokens, most=MAX_TOKENS)


def _one_line(text: str, most: int) -> str:
    """Return a text without what is not printable, cut off where it is too long."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."
