"""How does somebody log in, and out again?"""

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_health.dashboard import visitors
from agent_health.dashboard.desk import Desk, note_refusal
from agent_health.dashboard.pages import HEADERS, page
from agent_health.dashboard.return_path import LOGIN_PATH, MEMBER, own_path
from agent_health.dashboard.visitors import FORM_COOKIE, SESSION_COOKIE, SESSION_SECONDS
from agent_health.errors import NotAllowed, UnknownKey

FORM_SECONDS = 3_600
"""How long a login form may lie open."""


class LogIn:
    """Answers for login and logout."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def show(self, request: Request) -> Response:
        """Show the form; who is logged in goes on to where it would have led."""

        async def show() -> Response:
            self._desk.count(request)
            token = self._desk.token_in(request, SESSION_COOKIE)
            where = own_path(request.query_params.get(MEMBER, ""))
            is_in = bool(token) and await self._desk.database.read(
                lambda transaction: visitors.is_logged_in(transaction, token)
            )
            if is_in:
                return RedirectResponse(where, 303, HEADERS)
            return self._form(request, 200, None, where)

        return await self._desk.guarded(request, show)

    async def log_in(self, request: Request) -> Response:
        """Take a key, and give a session for it."""

        async def begin() -> Response:
            self._desk.count(request, is_login=True)
            form = await self._desk.form(request)
            self._desk.check_form(request, form, self._desk.token_in(request, FORM_COOKIE))
            token, key = visitors.new_token(), form.get("key", "").strip()
            where = own_path(form.get(MEMBER, ""))
            try:
                await self._desk.database.write(lambda transaction: visitors.log_in(transaction, key, token))
            except UnknownKey as refused:
                note_refusal(request, refused)
                return self._form(request, 401, "This key is not known here, or it is over.", where)
            except NotAllowed as refused:
                note_refusal(request, refused)
                why = f"A key with the role {refused.role} may not read the whole fleet: take another one."
                return self._form(request, 403, why, where)
            answer = RedirectResponse(where, 303, HEADERS)
            self._desk.set_cookie(answer, request, SESSION_COOKIE, token, SESSION_SECONDS)
            self._desk.set_cookie(answer, request, FORM_COOKIE, "", 0)
            return answer

        return await self._desk.guarded(request, begin)

    async def log_out(self, request: Request) -> Response:
        """End the session."""

        async def end() -> Response:
            form: dict[str, Any] = await self._desk.form(request)
            token = self._desk.token_in(request, SESSION_COOKIE)
            self._desk.check_form(request, form, token)
            await self._desk.database.write(lambda transaction: visitors.log_out(transaction, token))
            answer = RedirectResponse(LOGIN_PATH, 303, HEADERS)
            self._desk.set_cookie(answer, request, SESSION_COOKIE, "", 0)
            return answer

        return await self._desk.guarded(request, end)

    def _form(self, request: Request, status: int, why: str | None, where: str) -> Response:
        token = self._desk.login_token(request)
        shown = {
            "visitor": None,
            "path": request.url.path,
            "why": why,
            "where": where,
            "form_token": visitors.form_token(token),
            "is_open": self._desk.is_open,
        }
        answer = page("login.html", shown, status)
        self._desk.set_cookie(answer, request, FORM_COOKIE, token, FORM_SECONDS)
        return answer
