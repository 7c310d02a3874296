"""The routes of operators' accounts: their tokens, and the audit log."""

from datetime import datetime

from litestar.params import FromQuery, JSONBody

from forewarn.control import accounts
from forewarn.maintenance import model
from forewarn.maintenance.accounts import Token
from forewarn.server import secret_files
from forewarn.server.operator import requests, routing, schemas, views
from forewarn.server.operator.accounts import TOKEN_FILE
from forewarn.server.operator.requests import TheBackend, TheCaller
from forewarn.server.page import logins
from forewarn.store.port import AuditQuery
from forewarn.vocabulary import ErrorCode


@routing.get("/v1/tokens", routing.ACCOUNTS)
async def list_tokens(backend: TheBackend) -> schemas.TokenList:
    """List the operators' tokens; what they are is kept nowhere."""
    tokens = await backend.read(lambda reading: reading.tokens())
    return schemas.TokenList(tokens=views.tokens(tokens.values(), backend.now()))


@routing.post("/v1/tokens", schemas.TokenRequest, routing.ACCOUNTS, status=201)
async def create_token(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.TokenRequest]
) -> schemas.NewToken:
    """Make a token; the answer is the only one that ever shows it."""
    if data.name == TOKEN_FILE:
        message = f"at name: {TOKEN_FILE!r} is the account of operator.token_file"
        raise model.Refused(ErrorCode.CONFLICT, message, token=data.name)
    made, now = backend.make_token(), backend.now()
    expires_at = data.expires_at and requests.in_utc(data.expires_at, "expires_at")
    token = model.mapped(
        Token,
        data,
        digest=secret_files.digest(made.encode()),
        created_by=caller.by,
        created_at=now,
        expires_at=expires_at,
    )
    plane = backend.changing(caller, f"{data.name}: {data.role}")
    token = await backend.done(plane.order(accounts.create_token, token))
    (shown,) = views.tokens([token], now)
    return schemas.NewToken(token=made, account=shown)


@routing.delete("/v1/tokens", routing.ACCOUNTS)
async def revoke_tokens(
    backend: TheBackend,
    caller: TheCaller,
    name: routing.Names,
) -> schemas.TokenList:
    """Revoke tokens, all or none; repeat `name`. Who has one is refused from now on."""
    plane = backend.changing(caller, model.listed(name, routing.MAX_LISTED))
    revoked = await backend.done(plane.order(accounts.revoke_tokens, name))
    return schemas.TokenList(tokens=views.tokens(revoked, backend.now()))


@routing.post("/v1/logins", schemas.LoginRequest, routing.ACCOUNTS, status=201)
async def create_login(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.LoginRequest]
) -> schemas.NewLogin:
    """Make a link that logs a browser in to the page, once, with the role of whoever asks."""
    del data  # it is empty
    if backend.page_url is None:
        message = (
            'there is no page: set operator.listen, such as to "127.0.0.1:8172", and leave '
            "operator.page on"
        )
        raise model.Refused(ErrorCode.CONFLICT, message)
    assert caller.role is not None
    key = backend.make_token()
    link = logins.new_link(caller.by, caller.role, key, backend.now(), backend.scale)
    await backend.done(backend.changing(caller).order(accounts.make_link, link))
    return schemas.NewLogin(
        url=f"{backend.page_url()}/login?key={key}",
        account=link.account,
        role=link.role,
        valid_seconds=round(logins.LINK_LASTS.total_seconds()),
    )


@routing.get("/v1/audit", routing.ACCOUNTS)
async def read_audit(
    backend: TheBackend,
    *,
    by: routing.Name = "",
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    cursor: FromQuery[str] = "",
    limit: routing.Limit = schemas.DEFAULT_LIMIT,
) -> schemas.AuditPage:
    """List what operators asked, newest first: what was changed, and what was refused."""
    before = requests.key_before("audit", cursor)
    query = AuditQuery(
        by=by,
        since=since and requests.in_utc(since, "since"),
        until=until and requests.in_utc(until, "until"),
        before=int(before) if before else None,
        limit=limit + 1,
    )
    records = await backend.read(lambda reading: reading.audit(query))
    found, following = requests.page("audit", records, limit, lambda one: str(one.sequence))
    return schemas.AuditPage(records=tuple(found), next=following)
