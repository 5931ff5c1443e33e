"""A real OAuth 2 provider on loopback: Authlib's authorization server, and an agent's check of its tokens."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request, TokenMixin
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, ClientCredentialsGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from authlib.oauth2.rfc7636 import CodeChallenge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.support.uvicorn_thread import served

CLIENT = "lifesign"
CLIENT_SECRET = "client-canary~+of/ours %"
TOKEN_PATH = "/oauth2/token"
AUTHORIZE_PATH = "/oauth2/authorize"
RIGHTS = "agents.read"
METHODS = ["client_secret_basic", "client_secret_post", "private_key_jwt", "none"]


class Client(ClientMixin):
    """The one client of the provider."""

    def __init__(self, method: str, public_key: Any = None) -> None:
        self.method = method
        self.public_key = public_key

    def get_client_id(self) -> str:
        return CLIENT

    def get_default_redirect_uri(self) -> str:
        return ""

    def get_allowed_scope(self, scope: Any) -> Any:
        return RIGHTS if scope in {None, "", RIGHTS} else None

    def check_redirect_uri(self, redirect_uri: Any) -> bool:
        return str(redirect_uri).startswith("http://127.0.0.1:")

    def check_client_secret(self, client_secret: Any) -> bool:
        return secrets.compare_digest(str(client_secret).encode(), CLIENT_SECRET.encode())

    def check_endpoint_auth_method(self, method: Any, endpoint: Any) -> bool:
        return bool(method == self.method)

    def check_response_type(self, response_type: Any) -> bool:
        return bool(response_type == "code")

    def check_grant_type(self, grant_type: Any) -> bool:
        return True


class Provider(AuthorizationServer):
    """Issues tokens, and remembers them and the requests for them."""

    def __init__(self, client: Client) -> None:
        super().__init__(scopes_supported=[RIGHTS])
        self.client = client
        self.lifetime_s: int | None = 3600
        self.forms: list[dict[str, str]] = []
        """Bodies of the requests for tokens."""
        self.issued: list[str] = []
        self.valid: dict[str, float] = {}
        """Tokens that agents accept, and when they end by the clock of this machine."""
        self.is_down = False
        self.register_token_generator(
            "default", BearerTokenGenerator(self._new_token, self._new_refresh_token, self._lifetime_of)
        )
        self.register_grant(_ClientCredentials)
        self.register_grant(_RefreshToken)
        self.register_grant(_AuthorizationCode, [CodeChallenge(required=True)])
        self.codes: dict[str, OAuth2Request] = {}
        """Requests of authorizations by their codes."""
        self.has_consent = True
        self.redirect_extras: dict[str, str] = {}
        """Parameters of redirects besides those of Authlib; an empty one removes a parameter."""
        self.refresh_tokens: list[str] = []
        """All refresh tokens; only the last one is valid."""

    def query_client(self, client_id: str) -> Any:
        return self.client if client_id == CLIENT else None

    def save_token(self, token: Any, request: Any) -> None:
        self.issued.append(token["access_token"])
        self.valid[token["access_token"]] = time.time() + (self.lifetime_s or 300)

    def send_signal(self, name: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing listens to the signals of this provider."""

    def create_oauth2_request(self, request: Any) -> OAuth2Request:
        return request if isinstance(request, OAuth2Request) else _FormRequest(*request)

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        if status == 302:
            return Response(status_code=302, headers=self._with_extras(dict(headers)))
        return JSONResponse(body, status_code=status, headers=dict(headers))

    async def answer(self, request: Request) -> Any:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.forms.append(form)
        if self.is_down:
            return Response(status_code=503)
        # Authlib accepts TLS only, which a proxy would end.
        url = str(request.url).replace("http:", "https:", 1)
        return self.create_token_response((request.method, url, form, dict(request.headers)))

    def _with_extras(self, headers: dict[str, str]) -> dict[str, str]:
        parts = urlsplit(headers["Location"])
        fields = dict(parse_qsl(parts.query)) | self.redirect_extras
        query = urlencode({name: value for name, value in fields.items() if value})
        return headers | {"Location": parts._replace(query=query).geturl()}

    def authorize(self, request: Request) -> Any:
        """Answer a browser whose person consents at once."""
        url = str(request.url).replace("http:", "https:", 1)
        asked = self.create_oauth2_request(("GET", url, dict(request.query_params), {}))
        grant = cast("Any", self).get_consent_grant(asked, end_user="user")
        return self.create_authorization_response(asked, "user" if self.has_consent else None, grant)

    def revoke(self) -> None:
        self.valid.clear()

    def _new_refresh_token(self, **_members: Any) -> str:
        self.refresh_tokens.append(f"refresh-canary-{secrets.token_urlsafe(24)}")
        return self.refresh_tokens[-1]

    def _new_token(self, **_members: Any) -> str:
        return f"access-canary-0000-{secrets.token_urlsafe(24)}"

    def _lifetime_of(self, _client: Any, _grant: Any) -> int:
        return self.lifetime_s or 0


class _FormRequest(OAuth2Request):
    def __init__(self, method: str, url: str, form: dict[str, str], headers: dict[str, str]) -> None:
        names = {name.title(): value for name, value in headers.items()}
        super().__init__(method, url, headers=names)
        self.payload = BasicOAuth2Payload(form)
        self._form = form

    @property
    def form(self) -> dict[str, str]:
        return self._form


class _ClientCredentials(ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS


class _AuthorizationCode(AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        cast("Provider", self.server).codes[code] = request

    def query_authorization_code(self, code: str, client: Any) -> Any:
        asked = cast("Provider", self.server).codes.get(code)
        return None if asked is None else _Code(code, asked)

    def delete_authorization_code(self, authorization_code: Any) -> None:
        del cast("Provider", self.server).codes[authorization_code.code]

    def authenticate_user(self, authorization_code: Any) -> Any:
        return "user"


class _Code:
    """A code, and what it was given for."""

    def __init__(self, code: str, asked: OAuth2Request) -> None:
        self.code = code
        fields = cast("Any", asked.payload).data
        self.code_challenge = fields["code_challenge"]
        self.code_challenge_method = fields["code_challenge_method"]
        self._redirect_uri = fields["redirect_uri"]
        self._scope = fields.get("scope", "")

    def get_redirect_uri(self) -> str:
        return str(self._redirect_uri)

    def get_scope(self) -> str:
        return str(self._scope)


class _RefreshToken(RefreshTokenGrant):
    """Replaces the refresh token with each use, as providers do."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> Any:
        provider = cast("Provider", self.server)
        known = provider.refresh_tokens
        return _Consent(provider.client) if known and refresh_token == known[-1] else None

    def authenticate_user(self, refresh_token: Any) -> Any:
        return "user"

    def revoke_old_credential(self, refresh_token: Any) -> None:
        """Only the last one is valid."""


class _Consent(TokenMixin):
    """The grant behind a refresh token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def check_client(self, client: Any) -> bool:
        return client is self._client

    def get_scope(self) -> str:
        return RIGHTS

    def get_expires_in(self) -> int:
        return 3600

    def is_expired(self) -> bool:
        return False

    def is_revoked(self) -> bool:
        return False


class _SignedAssertion(JWTBearerClientAssertion):
    # The library's stubs declare it final, but its documentation overrides it.
    CLIENT_AUTH_METHOD = "private_key_jwt"  # type: ignore[misc]

    def __init__(self, audience: str) -> None:
        super().__init__()
        self._audience = audience
        self._used: set[str] = set()

    def get_audiences(self) -> list[str]:
        return [self._audience]

    def validate_jti(self, claims: Any, jti: Any) -> bool:
        is_new = jti not in self._used
        self._used.add(jti)
        return is_new

    def resolve_client_public_key(self, client: Any) -> Any:
        return client.public_key


@contextmanager
def serving_provider(
    method: str = "client_secret_basic", public_key: Any = None
) -> Iterator[tuple[Provider, str]]:
    """Serve a provider; yield it with the URL of its token endpoint."""
    provider = Provider(Client(method, public_key))

    def make_app(url: str) -> Starlette:
        provider.register_client_auth_method("private_key_jwt", _SignedAssertion(f"{url}{TOKEN_PATH}"))
        return Starlette(
            routes=[
                Route(TOKEN_PATH, provider.answer, methods=["POST"]),
                Route(AUTHORIZE_PATH, provider.authorize),
            ]
        )

    with served(make_app) as url:
        yield provider, f"{url}{TOKEN_PATH}"


class RequiresToken:
    """An agent that admits those with a token of the provider; its card is public."""

    def __init__(self, agent: ASGIApp, provider: Provider, is_public: Callable[[str], bool]) -> None:
        self._agent = agent
        self._provider = provider
        self._is_public = is_public
        self.tokens: list[str] = []
        """Tokens that were sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_public(scope["path"]):
            fields = {name.decode(): value.decode() for name, value in scope["headers"]}
            scheme, _, token = fields.get("authorization", "").partition(" ")
            if token:
                self.tokens.append(token)
            if scheme != "Bearer" or self._provider.valid.get(token, 0.0) <= time.time():
                challenge = {"WWW-Authenticate": 'Bearer error="invalid_token"' if token else "Bearer"}
                await Response(status_code=401, headers=challenge)(scope, receive, send)
                return
        await self._agent(scope, receive, send)
