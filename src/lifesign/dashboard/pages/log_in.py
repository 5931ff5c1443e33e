"""Login and logout."""

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lifesign.dashboard import login_sessions
from lifesign.dashboard.errors import ForgedForm
from lifesign.dashboard.login_sessions import (
    FORM_COOKIE,
    PROOF_FIELD,
    SESSION_COOKIE,
    SESSION_COOKIE_SECONDS,
    Visitor,
)
from lifesign.dashboard.page_handler import PageHandler, note_refusal
from lifesign.dashboard.responses import HEADERS, page
from lifesign.dashboard.safe_redirect import LOGIN_PATH, MEMBER, local_path, was_form_refused
from lifesign.domain.errors import NotAllowed
from lifesign.registry.errors import UnknownKey
from lifesign.storage.engine.transaction import Transaction

FORM_SECONDS = 3_600
"""Time for which a login form is valid."""
SESSION_OVER = "Your session has ended: log in again. Forms that you have sent since then had no effect."
OLD_FORM = (
    "This form has expired, so you are not logged in: it was open for more than an hour, or your "
    "browser does not store cookies of this server. Send it again."
)


class LogIn:
    """Answers for login and logout."""

    def __init__(self, desk: PageHandler) -> None:
        self._desk = desk

    async def show(self, request: Request) -> Response:
        """Show the login form; a visitor with a session is redirected."""

        async def show() -> Response:
            self._desk.count(request)
            where = local_path(request.query_params.get(MEMBER, ""))
            if await self._find_visitor(request) is not None:
                return RedirectResponse(where, 303, HEADERS)
            is_over = self._desk.has_expired_session(request)
            why = SESSION_OVER if is_over or was_form_refused(request) else None
            answer = self._form(request, 200, why, where)
            if is_over:
                self._desk.set_cookie(answer, request, SESSION_COOKIE, "", 0)
            return answer

        return await self._desk.guarded(request, show)

    async def log_in(self, request: Request) -> Response:
        """Accept a key, and begin a session for it."""

        async def begin() -> Response:
            self._desk.count(request, is_login=True)
            form = await self._desk.form(request)
            self._desk.check_origin(request)
            where = local_path(form.get(MEMBER, ""))
            try:
                login_sessions.check_form_token(
                    form.get("token", ""), self._desk.token_in(request, FORM_COOKIE)
                )
            except ForgedForm as refused:
                note_refusal(request, refused)
                holder = await self._find_visitor(request)
                return self._form(request, 403, OLD_FORM if holder is None else None, where, holder)
            before = self._desk.token_in(request, SESSION_COOKIE)
            token = login_sessions.new_token(form.get(PROOF_FIELD, ""))
            key = form.get("key", "").strip()

            def write(transaction: Transaction) -> None:
                login_sessions.log_in(transaction, key, token)
                login_sessions.log_out(transaction, before)

            try:
                await self._desk.database.write(write)
            except UnknownKey as refused:
                note_refusal(request, refused)
                return self._form(request, 401, "This key is unknown, or no longer valid.", where)
            except NotAllowed as refused:
                note_refusal(request, refused)
                why = f"A key with the role {refused.role} may not read the whole fleet: use another key."
                return self._form(request, 403, why, where)
            answer = RedirectResponse(where, 303, HEADERS)
            self._desk.set_cookie(answer, request, SESSION_COOKIE, token, SESSION_COOKIE_SECONDS)
            self._desk.set_cookie(answer, request, FORM_COOKIE, "", 0)
            return answer

        return await self._desk.guarded(request, begin)

    async def log_out(self, request: Request) -> Response:
        """End the session."""

        async def end() -> Response:
            form: dict[str, Any] = await self._desk.form(request)
            token = self._desk.check_form(request, form)
            await self._desk.database.write(lambda transaction: login_sessions.log_out(transaction, token))
            answer = RedirectResponse(LOGIN_PATH, 303, HEADERS)
            self._desk.set_cookie(answer, request, SESSION_COOKIE, "", 0)
            return answer

        return await self._desk.guarded(request, end)

    async def _find_visitor(self, request: Request) -> Visitor | None:
        token = self._desk.token_in(request, SESSION_COOKIE)
        if not token:
            return None
        return await self._desk.database.read(
            lambda transaction: login_sessions.find_visitor(transaction, token)
        )

    def _form(
        self, request: Request, status: int, why: str | None, where: str, holder: Visitor | None = None
    ) -> Response:
        """Return the login page; `holder` is the present user, if the form is an old one."""
        token = self._desk.login_token(request)
        shown = {
            "visitor": None,
            "path": request.url.path,
            "why": why,
            "where": where,
            "holder": holder,
            "form_token": login_sessions.form_token(token),
            "is_open": self._desk.is_open,
        }
        answer = page("login.html", shown, status)
        self._desk.set_cookie(answer, request, FORM_COOKIE, token, FORM_SECONDS)
        return answer
