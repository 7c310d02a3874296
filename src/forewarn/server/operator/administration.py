"""The operators' API: the routes for administrators of the service.

Tokens and the audit log; webhooks; the relays' tokens; replicas, clock, health
and metrics. docs/reference/api.md describes each route; a test compares.
"""

from datetime import timedelta
from typing import Final

import structlog
from starlette.responses import Response

from forewarn.control import accounts, relay_watch
from forewarn.control import webhooks as orders
from forewarn.maintenance import model, news, relays
from forewarn.maintenance import webhooks as rules
from forewarn.maintenance.accounts import Deed, Token, summary
from forewarn.maintenance.webhooks import Webhook
from forewarn.server import secret_files
from forewarn.server.operator import (
    metrics,
    openapi,
    routing,
    schemas,
    table,
    views,
)
from forewarn.server.operator.errors import RETRY_SECONDS, as_json
from forewarn.server.operator.routing import Backend, OperatorCall, one_line
from forewarn.server.operator.table import API
from forewarn.server.operator.webhook_requests import Sender
from forewarn.store.port import AuditQuery
from forewarn.store.queries import Reading
from forewarn.version import __version__
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience

PAGE_TOKEN_LASTS: Final = timedelta(hours=12)
"""The lifetime of a token for the page, in real time: a day's work."""

_log = structlog.get_logger(__name__)


# Accounts.


@API.route("GET", "/v1/tokens", AccessRole.ADMIN, table.ACCOUNTS)
async def list_tokens(backend: Backend) -> schemas.TokenList:
    """List the operators' tokens; what they are is kept nowhere."""
    found = (await backend.read(lambda reading: reading.tokens())).values()
    own = [token for token in found if not token.host]
    return schemas.TokenList(tokens=views.tokens(own, backend.now()))


@API.route("POST", "/v1/tokens", AccessRole.ADMIN, table.ACCOUNTS, status=201)
async def create_token(call: OperatorCall, data: schemas.TokenRequest) -> schemas.NewToken:
    """Make a token; the answer is the only one that ever shows it."""
    made, now = secret_files.new_token(), call.backend.now()
    token = model.mapped(
        Token,
        data,
        digest=secret_files.digest(made.encode()),
        created_by=call.by,
        created_at=now,
    )
    plane = call.changing(Deed.CREATE_TOKEN, f"{data.name}: {data.role}")
    token = await call.backend.done(plane.order(accounts.create_token, token))
    (shown,) = views.tokens([token], now)
    return schemas.NewToken(token=made, account=shown)


@API.route("DELETE", "/v1/tokens", AccessRole.ADMIN, table.ACCOUNTS)
async def revoke_tokens(call: OperatorCall, name: routing.Names) -> schemas.TokenList:
    """Revoke tokens, all or none; repeat `name`. Who has one is refused from now on."""
    plane = call.changing(Deed.REVOKE_TOKENS, name)
    revoked = await call.backend.done(plane.order(accounts.revoke_tokens, name))
    return schemas.TokenList(tokens=views.tokens(revoked, call.backend.now()))


@API.route("POST", "/v1/tokens/page", AccessRole.VIEWER, table.ACCOUNTS, status=201)
async def create_page_token(call: OperatorCall, data: schemas.EmptyBody) -> schemas.NewPageToken:
    """Make a token for the page, with the caller's role; only this answer shows its link."""
    del data  # it is empty
    if call.backend.page_url is None:
        message = (
            'there is no page: set operator.listen, such as to "127.0.0.1:8172", and leave '
            "operator.page on"
        )
        raise model.Refused(ErrorCode.CONFLICT, message)
    assert call.caller.role is not None
    made, now, parent = secret_files.new_token(), call.backend.now(), call.caller.token
    digest = secret_files.link_digest(made)
    ends = now + PAGE_TOKEN_LASTS * call.backend.settings.clock.scale
    token = Token(
        name=f"{call.by}/{digest[:8]}",
        role=call.caller.role,
        digest=digest,
        audience=TokenAudience.PAGE,
        created_by=call.by,
        created_at=now,
        expires_at=min(ends, parent.expires_at or ends) if parent else ends,
        parent=parent.digest if parent else "",
    )
    plane = call.changing(Deed.LOG_IN_LINK, token.name, needs=AccessRole.VIEWER)
    await call.backend.done(plane.order(accounts.create_page_token, token))
    (shown,) = views.tokens([token], now)
    return schemas.NewPageToken(url=f"{call.backend.page_url}/login#{made}", account=shown)


@API.route("GET", "/v1/audit", AccessRole.OPERATOR, table.ACCOUNTS)
async def read_audit(
    backend: Backend,
    *,
    by: routing.Name = "",
    since: schemas.Moment | None = None,
    until: schemas.Moment | None = None,
    logins: bool = False,
    cursor: str = "",
    limit: routing.Limit = schemas.DEFAULT_LIMIT,
) -> schemas.AuditPage:
    """List what operators asked, newest first: what was changed, and what was refused.

    With `logins` also who logged in to the page, and out.
    """
    routing.check_span(since, until)
    before = routing.key_before("audit", cursor)
    query = AuditQuery(
        by=by,
        since=since,
        until=until,
        logins=logins,
        before=int(before) if before else None,
        limit=limit + 1,
    )

    def question(reading: Reading) -> schemas.AuditPage:
        records = reading.audit(query)
        found, following = routing.page("audit", records, limit, lambda one: str(one.sequence))
        shape = schemas.AuditRecordView
        shown = tuple(model.mapped(shape, record, summary=summary(record)) for record in found)
        return schemas.AuditPage(records=shown, next=following)

    return await backend.read(question)


# Webhooks.


@API.route("GET", "/v1/webhooks", AccessRole.VIEWER, table.WEBHOOKS)
async def list_webhooks(backend: Backend) -> schemas.WebhookList:
    """List the webhooks, and how far each has come."""
    found = await backend.read(lambda reading: reading.webhooks())
    return schemas.WebhookList(webhooks=tuple(map(_shown, found.values())))


@API.route("POST", "/v1/webhooks", AccessRole.ADMIN, table.WEBHOOKS, status=201)
async def add_webhook(call: OperatorCall, data: schemas.WebhookRequest) -> schemas.NewWebhook:
    """Add a webhook for what happens from now on; the answer alone ever shows its secret."""
    call.caller.detail = data.name  # of a refusal; no part of the URL, which may be a secret
    _sender(call.backend)
    rules.judge_url(data.url, insecure=data.insecure)
    news.chosen(data.types)  # or it is refused
    secret = secret_files.new_webhook_secret()
    webhook = Webhook(name=data.name, url=data.url, types=data.types, secret=secret, cursor=(0, 0))
    plane = call.changing(Deed.ADD_WEBHOOK, f"{webhook.name}: {webhook.shown_url}")
    added = await call.backend.done(plane.order(orders.add, webhook))
    return schemas.NewWebhook(webhook=_shown(added), secret=secret)


@API.route("DELETE", "/v1/webhooks", AccessRole.ADMIN, table.WEBHOOKS)
async def remove_webhooks(call: OperatorCall, name: routing.Names) -> schemas.WebhookList:
    """Remove webhooks, all or none; repeat `name`."""
    plane = call.changing(Deed.REMOVE_WEBHOOKS, name)
    removed = await call.backend.done(plane.order(orders.remove, name))
    return schemas.WebhookList(webhooks=tuple(map(_shown, removed)))


@API.route("POST", "/v1/webhooks/{name}/tests", AccessRole.OPERATOR, table.WEBHOOKS)
async def test_webhook(
    call: OperatorCall, name: str, data: schemas.EmptyBody
) -> schemas.WebhookTest:
    """Send a webhook a test, beside its news."""
    del data  # it is empty
    call.caller.detail = name
    found = await call.backend.read(lambda reading: reading.webhooks())
    if name not in found:
        raise model.unknown("webhook", name)
    trouble = await _sender(call.backend).test(found[name], call.backend.now())
    return schemas.WebhookTest(accepted=not trouble, trouble=trouble)


def _sender(backend: Backend) -> Sender:
    if backend.sender is None:
        raise model.Refused(ErrorCode.CONFLICT, "an emulator has no webhooks")
    return backend.sender


def _shown(webhook: Webhook) -> schemas.WebhookView:
    following = "{}-{}".format(*webhook.cursor)
    shape = schemas.WebhookView
    return model.mapped(shape, webhook, url=webhook.shown_url, next=following)


# Relays.


@API.route("POST", "/v1/relays/tokens", AccessRole.ADMIN, table.HOSTS, status=201)
async def create_relay_token(
    call: OperatorCall, data: schemas.RelayTokenRequest
) -> schemas.NewRelayToken:
    """Make a token for the relay of a host; the answer is the only one that ever shows it.

    The token that the relay uses stays valid until the new one is used.
    """
    host, token = one_line(data.host, "host"), secret_files.new_token()
    digest = secret_files.digest(token.encode())
    made = relays.new_token(host, digest, by=call.by, at=call.backend.now())
    plane = call.changing(Deed.CREATE_RELAY_TOKEN, host)
    made = await call.backend.done(plane.order(relay_watch.create_token, made))
    _log.info("an operator made a token for a relay", host=host, by=made.created_by)
    return schemas.NewRelayToken(host=host, token=token, created_at=made.created_at)


@API.route("DELETE", "/v1/relays/tokens", AccessRole.ADMIN, table.HOSTS)
async def revoke_relay_tokens(call: OperatorCall, host: str) -> schemas.VoidRelayTokens:
    """Revoke all tokens of a host's relay: it is refused from now on."""
    plane = call.changing(Deed.REVOKE_RELAY_TOKENS, host)
    revoked = await call.backend.done(plane.order(relay_watch.revoke_tokens, host))
    _log.info("an operator revoked the tokens of a relay", host=host, by=call.by)
    return schemas.VoidRelayTokens(host=host, revoked=revoked)


# The service itself.


@API.route("GET", "/v1/replicas", AccessRole.VIEWER, table.SERVICE)
async def list_replicas(backend: Backend) -> schemas.ReplicaList:
    """List the replicas that share the database: by their rows, each as of its last beat."""
    rows = backend.replicas.all()
    return schemas.ReplicaList(
        now=backend.now(), replicas=views.replicas(rows, backend.replicas.own, backend.inventory)
    )


@API.route("GET", "/v1/clock", AccessRole.VIEWER, table.SERVICE)
async def clock(backend: Backend) -> schemas.ServiceTime:
    """Tell the service's own time, which all its times are in."""
    return schemas.ServiceTime(now=backend.now(), scale=backend.settings.clock.scale)


@API.route("GET", "/healthz", None, table.SERVICE, errors={})
async def health() -> schemas.Health:
    """Tell that the process is alive."""
    return schemas.Health(status="alive", version=__version__)


@API.route(
    "GET",
    "/readyz",
    None,
    table.SERVICE,
    answer=schemas.Readiness,
    errors={503: ("Not ready", schemas.Readiness)},
)
async def readiness(backend: Backend) -> Response:
    """Tell whether the service does all its work, and why not."""
    reasons = (await backend.readiness()).reasons
    answer = schemas.Readiness(ready=not reasons, reasons=reasons)
    headers = {"Retry-After": str(RETRY_SECONDS)} if reasons else {}
    return as_json(answer, 503 if reasons else 200, headers)


@API.route("GET", "/metrics", AccessRole.METRICS, table.SERVICE)
async def scrape(backend: Backend) -> Response:
    """Return every figure of the service for Prometheus."""
    # As a header: Starlette would add a second charset to a media type.
    return Response(await metrics.render(backend), headers={"content-type": metrics.CONTENT_TYPE})


@API.route("GET", "/v1/schema", AccessRole.VIEWER, table.SERVICE)
async def schema(backend: Backend) -> Response:
    """Return this API as OpenAPI, in JSON."""
    described = await backend.beside(openapi.document)
    return Response(described, media_type="application/json")
