"""The routes of the page, and the answers that they share.

A GET with htmx's header gets the page's part that changes, its block `main`; without, the whole
page. Refusals are HTML too.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from forewarn.control import accounts
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance import model
from forewarn.maintenance.accounts import Deed
from forewarn.server import secret_files
from forewarn.server.operator import administration, auth, errors, stream, table
from forewarn.server.operator.auth import FailedLogin
from forewarn.server.operator.errors import RefusedRequest
from forewarn.server.operator.fields import FieldGroup, row
from forewarn.server.operator.routing import Backend
from forewarn.server.operator.table import API, PAGE
from forewarn.server.page import forms, rendering
from forewarn.server.page.forms import FilledForm
from forewarn.server.page.live import Live, SharedAnswers
from forewarn.server.page.now import SharedNow
from forewarn.server.page.rendering import Renderer
from forewarn.server.page.timeline import Range
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience

MAX_SEARCH: Final = 256
"""The most characters that are searched for: names have 80."""

STATE: Final = "forewarn.state"
"""The key in a request's ASGI scope of what had changed when it came (`live.Live.state`)."""

AGED: Final = timedelta(seconds=5)
"""The longest time that a list is reused while nothing changes."""

T = TypeVar("T")

Search = Annotated[str, msgspec.Meta(max_length=MAX_SEARCH)]
Shown = Annotated[Range, msgspec.Meta(extra={table.NAME: "range"})]
State = Annotated[str, msgspec.Meta(max_length=100)]


class PageContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the page that its handlers need beside the backend."""

    backend: Backend
    renderer: Renderer
    live: Live
    door: auth.Door
    now: SharedNow
    shared: SharedAnswers = msgspec.field(default_factory=SharedAnswers)

    async def once(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `make`, shared by all windows that ask until something changes.

        After AGED it is made again: a machine's request for events is not a change.
        """
        aged = self.backend.now().timestamp() // AGED.total_seconds()
        return await self.shared.get(key, (self.live.state, aged), make)

    def begin(self, request: Request) -> None:
        """Note which changes this request's answer is sure to have."""
        request.scope[STATE] = self.live.state

    async def show(
        self,
        request: Request,
        template: str,
        make: Callable[[], Mapping[str, Any]] = dict,
        *,
        status: int = 200,
    ) -> Response:
        """Return a page; on the page's thread `make` returns what its template needs.

        `make` works on immutable values that were taken on the loop.
        """
        shown = self.frame(request)
        return await self.renderer.page(template, lambda: {**shown, **make()}, status)

    def frame(self, request: Request) -> dict[str, Any]:
        """Return the values for what is around every page."""
        caller = auth.request_of(request.scope)
        is_fragment = "hx-request" in request.headers
        path = request.scope["raw_path"].decode("ascii")
        # `//machines` would be a host to browsers.
        here = "/" + "/".join(filter(None, path.split("/")))
        query = request.scope["query_string"].decode("latin-1")
        return {
            "layout": "fragment.html" if is_fragment else "base.html",
            "path": request.scope["path"],
            "here": here + (f"?{query}" if query else ""),
            "who": caller.by,
            "role": caller.role,
            "may_change": caller.role is not None and caller.role.allows(AccessRole.OPERATOR),
            "now": self.backend.now(),
            "scale": self.backend.settings.clock.scale,
            "state": request.scope.get(STATE, self.live.state),
        }


# The pages.


@PAGE.route("GET", "/", AccessRole.VIEWER)
async def show_now(request: Request, page: PageContext, shown: Shown = Range.TWO_HOURS) -> Response:
    """Show what happens now."""
    parts = await page.now.html(shown)
    return await page.show(request, "now.html", lambda: {"parts": parts})


@PAGE.route("GET", "/search", AccessRole.VIEWER)
async def search(page: PageContext, q: Search = "") -> Response:
    """Lead to the machine, the operation or the maintenance of this name, or to those like it."""
    wanted = q.strip()
    number, _, part = wanted.partition(".")
    if number.isdecimal() and part.isdecimal():
        return RedirectResponse(f"/operations/{number}.{part}", status_code=303)
    if wanted.isdecimal():
        return RedirectResponse(f"/maintenance/{wanted}", status_code=303)
    if model.key(wanted) in page.backend.inventory.machines:
        return RedirectResponse(f"/machines/{quote(wanted, safe='')}", status_code=303)
    return RedirectResponse(f"/machines?{urlencode({'q': wanted})}", status_code=303)


@PAGE.route("GET", "/page/stream", AccessRole.VIEWER)
async def follow(request: Request, page: PageContext, since: State = "") -> Response:
    """Tell of changes until the page is closed."""
    backend = page.backend
    stream.count_reader(request, page.live, backend.accounts)
    told = page.live.stream(since, is_valid=backend.validity(auth.request_of(request.scope)))
    return StreamingResponse(told, media_type="text/event-stream", headers=stream.HEADERS)


@PAGE.route("GET", "/page/static/{name}", None)
async def send_static(request: Request, page: PageContext, name: str) -> Response:
    """Send a file that a browser may keep for ever."""
    file = page.renderer.files.get(name)
    if file is None:
        raise model.Refused(ErrorCode.NOT_FOUND, "no such file")
    packs = "gzip" in request.headers.get("accept-encoding", "")
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
async def show_login(request: Request, page: PageContext) -> Response:
    """Show the form by which the script sends the token in a link's fragment."""
    return await page.show(request, "login.html")


@PAGE.route("POST", "/login", None)
async def log_in(request: Request, caller: OperatorRequest, page: PageContext) -> Response:
    """Exchange the token of a link for a cookie, and lead to the page."""
    backend = page.backend
    shown = forms.sent(await table.read_body(request)).text("token")[: auth.MAX_SHOWN_TOKEN]
    digest, now = secret_files.digest(shown.encode()), backend.now()
    # From the store: another replica may have made it a moment ago.
    tokens = (await backend.read(lambda reading: reading.tokens())).values()
    found = (token for token in tokens if token.digest == digest)
    token = next(found, None)
    if token is None or token.audience is not TokenAudience.PAGE or token.expired(now):
        await page.door.delay(FailedLogin.UNKNOWN, caller.address)
        raise accounts.spent_link()
    caller.by, caller.role = token.account, token.role
    made = secret_files.new_token()
    plane = backend.changing(caller, Deed.LOG_IN, token.name, needs=token.role)
    order = plane.order(accounts.renew_secret, token, secret_files.digest(made.encode()))
    token = await backend.done(order)
    assert token.expires_at is not None
    left = (token.expires_at - now) / backend.settings.clock.scale
    return _led_to("/", request, made, round(left.total_seconds()))


@PAGE.route("POST", "/logout", AccessRole.VIEWER)
async def log_out(request: Request, caller: OperatorRequest, page: PageContext) -> Response:
    """Revoke the browser's token."""
    token = caller.token
    if token is not None and token.audience is TokenAudience.PAGE:
        plane = page.backend.changing(caller, Deed.LOG_OUT, token.name, needs=AccessRole.VIEWER)
        await page.backend.done(plane.order(accounts.revoke_tokens, [token.name]))
    return _led_to("/login", request, "", 0)


@PAGE.route("GET", "/tokens", AccessRole.ADMIN)
async def show_tokens(request: Request, page: PageContext) -> Response:
    """List the tokens, with a form for another."""
    return await _tokens(request, page, forms.default((TOKEN,)))


@PAGE.route("POST", "/page/tokens", AccessRole.ADMIN)
async def make_token(request: Request, caller: OperatorRequest, page: PageContext) -> Response:
    """Make a token, and show it this once."""
    form = forms.sent(await table.read_body(request))
    try:
        given = {field.name: forms.value(field, form, page.backend.now()) for field in TOKEN.fields}
        asked = {**given, "role": form.text("role")}
        made = await API.call(administration.create_token, request, asked)
    except forms.REFUSED as error:
        caller.outcome = errors.code_of(error)
        mistake = forms.mistake_of(error, form, (TOKEN,))
        status = errors.STATUS[caller.outcome]
        return await _tokens(request, page, form, {"mistake": mistake}, status)
    return await _tokens(request, page, forms.default((TOKEN,)), {"made": made})


async def _tokens(
    request: Request,
    page: PageContext,
    form: FilledForm,
    more: Mapping[str, Any] = MappingProxyType({}),
    status: int = 200,
) -> Response:
    listed = await administration.list_tokens(page.backend)
    values = {"tokens": listed.tokens, "groups": (TOKEN,), "form": form, "made": None}
    values |= {"mistake": None, **more}
    return await page.show(request, "tokens.html", lambda: values, status=status)


TOKEN: Final = FieldGroup(
    "New token",
    (
        row("name", "The history and the audit log show it.", "Name"),
        row(
            "role",
            "What its holder may do.",
            "Role",
            choices=tuple((role, role) for role in AccessRole if role is not AccessRole.RELAY),
            default=AccessRole.VIEWER,
        ),
        row(
            "--expires TIME expires_at",
            "A time such as 2027-01-31T00:00Z, or +90d. Empty: never.",
            "Expires",
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
        # By the browser's own word, which `auth.Gate` has judged: a proxy may end TLS before us.
        secure=request.headers.get("origin", "").startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return response


# What is refused.


def refuse(page: PageContext, request: Request, refusal: RefusedRequest) -> Response:
    """Return a refusal as the page shows it: alone, or where the page shows what went wrong.

    Rendered on the loop: it is some lines, whatever the fleet.
    """
    is_fragment = "hx-request" in request.headers
    text = page.renderer.text(
        "refused.html" if is_fragment else "error.html",
        {
            **page.frame(request),
            "code": refusal.detail.code,
            "message": refusal.detail.message,
            "status": refusal.status,
        },
    )
    headers = {**rendering.HEADERS, **refusal.headers}
    if is_fragment:
        headers |= {"HX-Retarget": "#refusal", "HX-Reswap": "innerHTML"}
    return Response(text, status_code=refusal.status, headers=headers, media_type="text/html")
