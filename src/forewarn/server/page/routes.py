"""The routes of the page, and the answers that they share.

A GET with htmx's header gets the page's part that changes, its block `main`; without, the whole
page. Refusals are HTML too.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from forewarn.control import accounts
from forewarn.maintenance import model
from forewarn.maintenance.accounts import Deed, Token
from forewarn.server import secret_files
from forewarn.server.operator import administration, auth, errors, schemas, stream, table
from forewarn.server.operator.auth import FailedLogin
from forewarn.server.operator.errors import RefusedRequest
from forewarn.server.operator.fields import FieldGroup, row
from forewarn.server.operator.routing import Backend, OperatorCall
from forewarn.server.operator.table import API, PAGE
from forewarn.server.page import forms, rendering
from forewarn.server.page.forms import Draft, FilledForm
from forewarn.server.page.live import Live, SharedAnswers
from forewarn.server.page.now import RenderedNow
from forewarn.server.page.rendering import Renderer
from forewarn.server.page.timeline import Range
from forewarn.settings import Mistake
from forewarn.store.port import StoreError
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience

MAX_SEARCH: Final = 256
"""The most characters that are searched for: names have 80."""

AGED: Final = timedelta(seconds=5)
"""The longest time that a list is reused while nothing changes."""

T = TypeVar("T")

Search = Annotated[str, msgspec.Meta(max_length=MAX_SEARCH)]
Shown = Annotated[Range, msgspec.Meta(extra={table.NAME: "range"})]
State = Annotated[str, msgspec.Meta(max_length=100)]


class PageContext:
    """The parts of the page that its handlers need beside the backend."""

    def __init__(self, backend: Backend, auth_context: auth.AuthContext, process: str) -> None:
        self.backend, self.auth_context = backend, auth_context
        self.renderer = Renderer()
        self.live = Live(backend.clock, backend.real, process)
        self.now = RenderedNow(backend, self.renderer)
        self.shared, self.tokens = SharedAnswers(), SharedAnswers()


class PageRequest:
    """A request of the page, as its handlers are given it, and the answers to it."""

    def __init__(self, context: PageContext, request: Request) -> None:
        self.context = context
        self.backend = context.backend
        self.request = request
        self.call: OperatorCall = request.scope[table.CALL]
        self.caller = self.call.caller
        self._is_fragment = "hx-request" in request.headers
        self._state = context.live.state
        """The changes that the answer is sure to have."""

    async def form(self) -> FilledForm:
        """Read the form that the browser sent."""
        return forms.sent(await table.read_body(self.request))

    async def read_tokens(self) -> tuple[Token, ...]:
        """Return the tokens as the store has them."""
        return tuple((await self.backend.read(lambda reading: reading.tokens())).values())

    async def once(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `make`, shared by all windows that ask until something changes.

        After AGED it is made again: a machine's request for events is not a change.
        """
        aged = self.backend.now().timestamp() // AGED.total_seconds()
        state = self.context.live.state, aged
        return await self.context.shared.get(key, state, make)

    async def show(
        self,
        template: str,
        make: Callable[[], Mapping[str, Any]] = dict,
        draft: Draft | None = None,
    ) -> Response:
        """Return a page; on the page's thread `make` returns what its template needs.

        `make` works on immutable values that were taken on the loop. With a draft the page has its
        form.
        """
        shown = self._frame() | ({"form": draft.form, "mistake": draft.mistake} if draft else {})
        status = draft.status if draft else 200
        return await self.context.renderer.page(template, lambda: {**shown, **make()}, status)

    def refused(
        self, error: model.Refused | StoreError, form: FilledForm, groups: Sequence[FieldGroup]
    ) -> Draft:
        """Return a form that was refused, to be shown again with the reason."""
        self.caller.outcome = code = error.code
        where, message = "", str(error)
        if isinstance(error, model.Refused) and (where := forms.field_of(error, form, groups)):
            message = message.removeprefix(f"at {error.facts.get('where')}: ")  # it stands there
        return Draft(form, Mistake(where, message), errors.STATUS[code])

    def refuse(self, refusal: RefusedRequest) -> Response:
        """Return a refusal as the page shows it: alone, or where the page shows what went wrong.

        Rendered on the loop: it is some lines, whatever the fleet.
        """
        told = {"code": refusal.detail.code, "message": refusal.detail.message}
        text = self.context.renderer.text(
            "refused.html" if self._is_fragment else "error.html",
            {**self._frame(), **told, "status": refusal.status},
        )
        headers = {**rendering.HEADERS, **refusal.headers}
        if self._is_fragment:
            headers |= {"HX-Retarget": "#refusal", "HX-Reswap": "innerHTML"}
        return Response(text, status_code=refusal.status, headers=headers, media_type="text/html")

    def _frame(self) -> dict[str, Any]:
        """Return the values for what is around every page."""
        scope, role = self.request.scope, self.caller.role
        # `//machines` would be a host to browsers.
        here = "/" + "/".join(filter(None, scope["raw_path"].decode("ascii").split("/")))
        query = scope["query_string"].decode("latin-1")
        return {
            "layout": "fragment.html" if self._is_fragment else "base.html",
            "path": scope["path"],
            "here": here + (f"?{query}" if query else ""),
            "who": self.caller.by,
            "role": role,
            "may_change": role is not None and role.allows(AccessRole.OPERATOR),
            "now": self.backend.now(),
            "scale": self.backend.settings.clock.scale,
            "state": self._state,
        }


# The pages.


@PAGE.route("GET", "/", AccessRole.VIEWER)
async def show_now(page: PageRequest, shown: Shown = Range.TWO_HOURS) -> Response:
    """Show what happens now."""
    parts = await page.once(("now", shown), lambda: page.context.now.html(shown))
    return await page.show("now.html", lambda: {"parts": parts})


@PAGE.route("GET", "/search", AccessRole.VIEWER)
async def search(page: PageRequest, q: Search = "") -> Response:
    """Lead to the machine, the operation or the maintenance of this name, or to those like it."""
    wanted = q.strip()
    if model.key(wanted) in page.backend.inventory.machines:  # also one that is called 12
        return RedirectResponse(f"/machines/{quote(wanted, safe='')}", status_code=303)
    number, _, part = wanted.partition(".")
    if number.isdecimal() and part.isdecimal():
        return RedirectResponse(f"/operations/{number}.{part}", status_code=303)
    if wanted.isdecimal():
        return RedirectResponse(f"/maintenance/{wanted}", status_code=303)
    return RedirectResponse(f"/machines?{urlencode({'q': wanted})}", status_code=303)


@PAGE.route("GET", "/page/stream", AccessRole.VIEWER)
async def follow(page: PageRequest, since: State = "") -> Response:
    """Tell of changes until the page is closed."""
    live = page.context.live
    stream.count_reader(page.request, live, page.backend.accounts)
    told = live.stream(since, is_valid=page.call.is_valid)
    return StreamingResponse(told, media_type="text/event-stream", headers=stream.HEADERS)


@PAGE.route("GET", "/page/static/{name}", None)
async def send_static(page: PageRequest, name: str) -> Response:
    """Send a file that a browser may keep for ever."""
    file = page.context.renderer.files.get(name)
    if file is None:
        raise model.Refused(ErrorCode.NOT_FOUND, "no such file")
    packs = "gzip" in page.request.headers.get("accept-encoding", "")
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
        "Vary": "Accept-Encoding",
        "Content-Type": file.kind,
    }
    if packs:
        headers["Content-Encoding"] = "gzip"
    return Response(file.packed if packs else file.body, headers=headers)


# Logging in and out.


@PAGE.route("GET", "/login", None)
async def show_login(page: PageRequest) -> Response:
    """Show the form by which the script sends the token in a link's fragment."""
    return await page.show("login.html")


@PAGE.route("POST", "/login", None)
async def log_in(page: PageRequest) -> Response:
    """Exchange the token of a link for a cookie, and lead to the page."""
    backend, caller = page.backend, page.caller
    shown = (await page.form()).text("token")[: auth.MAX_SHOWN_TOKEN]
    digest, now = secret_files.link_digest(shown), backend.now()
    token = backend.accounts.find(digest)
    if token is None and backend.store.shared:  # another replica may have made it a moment ago
        tokens = await page.context.tokens.get("tokens", now.timestamp() // 1, page.read_tokens)
        token = next((each for each in tokens if each.digest == digest), None)
    if token is None or backend.accounts.has_ended(token, now):
        await page.context.auth_context.delay(FailedLogin.UNKNOWN, caller.address)
        raise accounts.spent_link()
    caller.by, caller.role = token.account, token.role
    made = secret_files.new_token()
    plane = page.call.changing(Deed.LOG_IN, token.name, needs=token.role)
    order = plane.order(accounts.renew_secret, token, secret_files.digest(made.encode()))
    token = await backend.done(order)
    assert token.expires_at is not None
    left = (token.expires_at - now) / backend.settings.clock.scale
    return _led_to("/", page.request, made, round(left.total_seconds()))


@PAGE.route("POST", "/logout", AccessRole.VIEWER)
async def log_out(page: PageRequest) -> Response:
    """Revoke the browser's token."""
    token = page.caller.token
    if token is not None and token.audience is TokenAudience.PAGE:
        plane = page.call.changing(Deed.LOG_OUT, token.name, needs=AccessRole.VIEWER)
        await page.backend.done(plane.order(accounts.revoke_tokens, [token.name]))
    return _led_to("/login", page.request, "", 0)


@PAGE.route("GET", "/tokens", AccessRole.ADMIN)
async def show_tokens(page: PageRequest) -> Response:
    """List the tokens, with a form for another."""
    return await _tokens(page, Draft(forms.default((TOKEN,))))


@PAGE.route("POST", "/page/tokens", AccessRole.ADMIN)
async def make_token(page: PageRequest) -> Response:
    """Make a token, and show it this once."""
    form = await page.form()
    try:
        given = {field.name: forms.value(field, form, page.backend.now()) for field in TOKEN.fields}
        asked = {**given, "role": form.text("role")}
        made = await API.call(administration.create_token, page.request, asked)
    except forms.REFUSED as error:
        return await _tokens(page, page.refused(error, form, (TOKEN,)))
    return await _tokens(page, Draft(forms.default((TOKEN,))), made)


async def _tokens(
    page: PageRequest, draft: Draft, made: schemas.NewToken | None = None
) -> Response:
    listed = await administration.list_tokens(page.backend)
    values = {"tokens": listed.tokens, "groups": (TOKEN,), "made": made}
    return await page.show("tokens.html", lambda: values, draft)


TOKEN: Final = FieldGroup(
    "New token",
    (
        row("name", "The history and the audit log show it.", required=True),
        row(
            "role",
            "metrics, viewer, operator or admin.",
            choices=tuple((role, role) for role in AccessRole if role is not AccessRole.RELAY),
            default=AccessRole.VIEWER,
        ),
        row(
            "--expires TIME expires_at", "A time such as 2027-01-31T00:00Z, or +90d. Empty: never."
        ),
    ),
)


def _led_to(path: str, request: Request, cookie: str, lasts: int) -> Response:
    """Lead to a path, with a cookie for some seconds."""
    response = RedirectResponse(path, 303)
    response.set_cookie(
        auth.cookie_name(request.scope),
        cookie,
        max_age=lasts,
        # By the browser's own word, judged by `auth.AuthMiddleware`: a proxy may end TLS before us.
        secure=request.headers.get("origin", "").startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return response
