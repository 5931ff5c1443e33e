import re
import socket
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.dashboard.conftest import Filled, Sample
from tests.support.dashboard_sample import KEYS
from tests.support.dashboard_visitor import Visitor
from tests.support.registry_server import registry_server

from lifesign.dashboard.login_sessions import FORM_COOKIE, SESSION_COOKIE, form_token
from lifesign.dashboard.routes import Dashboard
from lifesign.domain.access.permissions import Role, digest_of, key_of
from lifesign.storage.engine.database_deadline import DeadlineDatabase
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.keys import sessions

PAGES = ("/", "/agents", "/events", "/tasks", "/targets", "/census", "/login")

ALERT = 'role="alert"'
"""The markup of what the login page reports."""
OVER = '<p class="session-ended" role="status">'
"""The markup of the report that a session has ended, on a page that everyone may read."""


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/", "/login"),
        ("/agents", "/login?next=%2Fagents"),
        ("/agents/translator?done=drain", "/login?next=%2Fagents%2Ftranslator%3Fdone%3Ddrain"),
        ("/agents/a%C3%A9", "/login?next=%2Fagents%2Fa%25C3%25A9"),
        ("/agents?q=%22%3E", "/login?next=%2Fagents%3Fq%3D%2522%253E"),
        ("/agents?x[]=1", "/login?next=%2Fagents"),
    ],
)
def test_visitor_without_login_is_redirected_to_the_form(sample: Sample, path: str, where: str) -> None:
    answer = sample.visitor().get(path)
    assert (answer.status, answer.headers["location"]) == (303, where)


def test_login_redirects_to_the_requested_page(sample: Sample) -> None:
    visitor = sample.visitor()
    form = visitor.get(visitor.get("/agents?status=dead&health=unknown").headers["location"])
    (where,) = re.findall(r'name="next" value="([^"]+)"', form.html)
    assert unescape(where) == "/agents?status=dead&health=unknown"
    members = {"next": unescape(where), "token": form.form_token()}
    wrong = visitor.post("/login", {"key": key_of(bytes(range(32))), **members})
    assert re.findall(r'name="next" value="([^"]+)"', wrong.html) == [where]
    answer = visitor.post("/login", {"key": KEYS[Role.READER], **members})
    assert (answer.status, answer.headers["location"]) == (303, "/agents?status=dead&health=unknown")


@pytest.mark.parametrize("where", ["//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb: c"])
def test_login_redirects_only_within_the_dashboard(sample: Sample, where: str) -> None:
    asked = f"/login?{urlencode({'next': where})}"
    assert "evil" not in sample.visitor().get(asked).html
    assert sample.visitor(Role.READER).get(asked).headers["location"] == "/"
    visitor = sample.visitor()
    form = {"key": KEYS[Role.READER], "token": visitor.get("/login").form_token(), "next": where}
    assert visitor.post("/login", form).headers["location"] == "/"


def test_logged_in_visitor_is_redirected_from_the_login(sample: Sample) -> None:
    visitor = sample.visitor(Role.READER)
    answer = visitor.get("/login?next=/tasks")
    assert (answer.status, answer.headers["location"]) == (303, "/tasks")
    assert visitor.get("/login").headers["location"] == "/"
    visitor.cookies[SESSION_COOKIE] += "x"
    assert visitor.get("/login").status == 200


def test_get_requests_change_nothing(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[object] = []
    visitor = sample.visitor(Role.ADMIN)
    monkeypatch.setattr(DeadlineDatabase, "write", lambda _self, function: changes.append(function))
    task = next(iter(sample.tasks.values()))
    for path in (
        *PAGES,
        "/agents/translator",
        f"/tasks/{task}",
        "/status/translator",
        "/badge/translator.svg",
    ):
        assert visitor.get(path).status in {200, 303}, path
    assert changes == []


def test_refused_login_is_logged_without_the_key(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lifesign.registry")
    key = key_of(bytes(range(32)))
    with registry_server(tmp_path_factory.mktemp("logged"), face=Dashboard) as server:
        visitor = Visitor(server.url)
        visitor.log_in(key)
        visitor.post("/login", {"key": key, "token": "0" * 64})
    found = [
        tuple(vars(record)[name] for name in ("path", "status", "reason", "client"))
        for record in caplog.records
        if record.msg == "call.refused"
    ]
    assert found == [
        ("/login", 401, "unknown_key", "127.0.0.1"),
        ("/login", 403, "forged_form", "127.0.0.1"),
    ]
    assert key not in caplog.text


def test_a_key_opens_a_session_that_ends_with_logout(sample: Sample) -> None:
    visitor = sample.visitor()
    answer = visitor.log_in(KEYS[Role.READER])
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert KEYS[Role.READER] not in str(answer.cookies)
    page = visitor.get("/")
    assert page.status == 200
    assert "reader (reader)" in page.text
    token = visitor.cookies[SESSION_COOKIE]
    assert visitor.do("/", "/logout").headers["location"] == "/login"
    assert SESSION_COOKIE not in visitor.cookies
    visitor.cookies[SESSION_COOKIE] = token
    assert visitor.get("/").status == 303


def test_session_cookie_is_same_site_lax_and_http_only(sample: Sample) -> None:
    (session,) = [
        cookie for cookie in sample.visitor().log_in(KEYS[Role.ADMIN]).cookies if SESSION_COOKIE in cookie
    ]
    assert re.search("HttpOnly", session)
    assert re.search("SameSite=lax", session, re.IGNORECASE)
    # Longer than the session, so that a returning visitor gets a message.
    assert "Max-Age=604800" in session


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_session_cookie_is_secure_behind_tls(sample: Sample, scheme: str, *, is_secure: bool) -> None:
    cookies = sample.visitor().get("/login", x_forwarded_proto=scheme).cookies
    assert ["Secure" in cookie for cookie in cookies] == [is_secure]


@pytest.mark.parametrize(
    ("key", "status", "why"),
    [
        ("", 401, "unknown"),
        ("not a key", 401, "unknown"),
        (key_of(bytes(range(32))), 401, "unknown"),
        (KEYS[Role.ENROLL], 403, "enroll"),
    ],
)
def test_another_key_is_refused(sample: Sample, key: str, status: int, why: str) -> None:
    visitor = sample.visitor()
    answer = visitor.log_in(key)
    assert answer.status == status
    assert why in answer.text
    assert SESSION_COOKIE not in visitor.cookies
    assert not key or key not in answer.html


def test_a_session_ends_with_its_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.support.registry_server import KEYS as SERVER_KEYS  # noqa: PLC0415

    with registry_server(tmp_path_factory.mktemp("keys"), face=Dashboard) as server:
        visitor = Visitor(server.url)
        visitor.log_in(SERVER_KEYS[Role.READER])
        assert visitor.get("/").status == 200
        server.revoke(SERVER_KEYS[Role.READER])
        assert visitor.get("/").status == 303


def newcomer(sample: Sample) -> Visitor:
    """Return a visitor with another address: logins per address are limited."""
    return Visitor(sample.server.url, address="127.0.1.1")


def end_session(sample: Sample, visitor: Visitor) -> None:
    """Let the time of a visitor's session have come."""
    digest = digest_of(visitor.cookies[SESSION_COOKIE]).hex()

    def age(transaction: Transaction) -> None:
        over = "UPDATE sessions SET expires_at_s = created_at_s WHERE digest = ?"
        assert transaction.connection.exec_driver_sql(over, (digest,)).rowcount == 1

    sample.server.write(age)


def test_session_ends_at_its_expiry(sample: Sample) -> None:
    visitor = sample.visitor()
    visitor.log_in(KEYS[Role.READER])
    end_session(sample, visitor)
    assert visitor.get("/").status == 303


def test_expired_session_is_reported_once_at_the_login(sample: Sample) -> None:
    visitor = newcomer(sample)
    visitor.log_in(KEYS[Role.READER])
    end_session(sample, visitor)
    where = visitor.get("/tasks").headers["location"]
    # A request of a script does not use up the message for the visitor.
    assert ALERT not in visitor.get(where, sec_fetch_mode="cors").html
    assert "Your session has ended: log in again." in visitor.get(where).text
    assert ALERT not in visitor.get(where).html


def test_expired_session_is_reported_once_where_reading_is_public(open_sample: Sample) -> None:
    visitor = open_sample.visitor()
    assert OVER not in visitor.get("/agents").html
    visitor.log_in(KEYS[Role.COORDINATOR])
    assert OVER not in visitor.get("/agents").html
    end_session(open_sample, visitor)
    assert OVER not in visitor.get("/agents", sec_fetch_mode="cors").html
    answer = visitor.get("/agents?pool=billing")
    assert OVER in answer.html
    assert 'href="/login?next=%2Fagents%3Fpool%3Dbilling"' in answer.html
    assert OVER not in visitor.get("/agents?pool=billing").html


@pytest.mark.parametrize("has_cookie", [True, False])
def test_form_of_an_expired_session_leads_to_the_login_and_back(sample: Sample, *, has_cookie: bool) -> None:
    visitor = newcomer(sample)
    visitor.log_in(KEYS[Role.COORDINATOR])
    token = visitor.get("/agents/translator").form_token()
    end_session(sample, visitor)
    if not has_cookie:
        del visitor.cookies[SESSION_COOKIE]
    answer = visitor.post("/agents/translator/recheck", {"token": token})
    where = "/login?next=%2Fagents%2Ftranslator&form=undone"
    assert (answer.status, answer.headers["location"]) == (303, where)
    # Also after a logout in another tab, which leaves no cookie behind.
    assert ALERT in visitor.get(where).html


def test_login_form_of_another_tab_names_the_user(sample: Sample) -> None:
    visitor = newcomer(sample)
    other_tab = visitor.get("/login?next=/tasks").form_token()
    visitor.log_in(KEYS[Role.READER])
    first = visitor.cookies[SESSION_COOKIE]
    form = {"token": other_tab, "key": KEYS[Role.COORDINATOR], "next": "/tasks"}
    refused = visitor.post("/login", form)
    assert refused.status == 403
    assert "the key reader (reader)" in refused.text
    assert '<a href="/tasks">Continue</a>' in refused.html
    assert visitor.cookies[SESSION_COOKIE] == first
    answer = visitor.post("/login", {**form, "token": refused.form_token()})
    assert (answer.status, answer.headers["location"]) == (303, "/tasks")
    assert "coordinator (coordinator)" in visitor.get("/").text
    # The session before has ended with that.
    visitor.cookies[SESSION_COOKIE] = first
    assert visitor.get("/").status == 303


def test_expired_login_form_is_shown_again(sample: Sample) -> None:
    visitor = newcomer(sample)
    token = visitor.get("/login").form_token()
    del visitor.cookies[FORM_COOKIE]
    form = {"token": token, "key": KEYS[Role.READER], "next": "/tasks"}
    refused = visitor.post("/login", form)
    assert (refused.status, SESSION_COOKIE in visitor.cookies) == (403, False)
    assert ALERT in refused.html
    answer = visitor.post("/login", {**form, "token": refused.form_token()})
    assert (answer.status, answer.headers["location"]) == (303, "/tasks")


def test_login_form_of_another_site_is_refused_without_a_new_one(sample: Sample) -> None:
    visitor = newcomer(sample)
    form = {"token": visitor.get("/login").form_token(), "key": KEYS[Role.READER]}
    answer = visitor.post("/login", form, origin="https://elsewhere.example", sec_fetch_site="cross-site")
    assert answer.status == 403
    assert answer.cookies == ()
    assert 'name="token"' not in answer.html


def test_latest_sessions_of_a_key_are_kept(sample: Sample) -> None:
    def begin(transaction: Transaction) -> None:
        for number in range(5):
            session = sessions.StoredSession(
                digest=f"{number:064}", key_id="key_x", created_at_s=number, expires_at_s=number + 100
            )
            sessions.add(transaction, session, 3)
        kept = [number for number in range(5) if sessions.find(transaction, f"{number:064}")]
        assert kept == [2, 3, 4]

    sample.server.write(begin)


@pytest.mark.parametrize(
    "forged",
    [
        {"token": ""},
        {"token": "0" * 64},
        {"token": "é"},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_form_from_another_origin_is_refused(sample: Sample, forged: dict[str, str]) -> None:
    visitor = sample.visitor(Role.ADMIN)
    token = forged.pop("token", visitor.get("/").form_token())
    answer = visitor.post("/logout", {"token": token}, **forged)
    assert answer.status == 403
    assert "does not belong to this session" in answer.text
    assert visitor.get("/").status == 200


def test_stolen_cookie_can_read_and_change_nothing(mutable_sample: Sample) -> None:
    owner = mutable_sample.visitor(Role.ADMIN)
    thief = Visitor(owner.url, cookies=dict(owner.cookies), secret="")
    path, fields = "/agents/translator/override", {"status": "unhealthy", "minutes": "5", "reason": "test"}
    assert thief.get("/agents/translator").status == 200
    for secret in ("", "a guess"):
        thief.secret = secret
        answer = thief.do("/agents/translator", path, **fields)
        assert answer.status == 403
        assert "log in again" in answer.text
    assert "Override the status" in owner.get("/agents/translator").text
    assert owner.do("/agents/translator", path, **fields).status == 303
    assert "End the override" in owner.get("/agents/translator").text


def test_every_form_asks_for_the_key_if_the_browser_sent_no_secret(mutable_sample: Sample) -> None:
    tasks = mutable_sample.tasks
    pages = (
        "/agents/translator",
        "/agents?pool=billing",
        f"/tasks/{tasks['review']}",
        f"/tasks/{tasks['handoff']}",
    )
    for role, secret in ((Role.ADMIN, "secret"), (Role.ADMIN, "")):
        visitor = Visitor(mutable_sample.server.url, secret=secret)
        visitor.log_in(KEYS[role])
        for page in pages:
            forms = re.findall(
                r'<form method="post" action="(?!/logout)[^>]*>.*?</form>', visitor.get(page).html
            )
            assert forms, page
            assert all(('name="key"' in form) is (not secret) for form in forms), page


def test_form_from_plain_http_on_the_same_host_is_refused_over_tls(filled: Filled, tmp_path: Path) -> None:
    for public, origin, is_taken in (
        ("https://registry.example", "https://registry.example", True),
        ("https://registry.example", "http://registry.example", False),
        ("http://registry.example:8440", "http://registry.example", False),
        ("http://registry.example:8440", "http://registry.example:8440", True),
    ):
        with filled.served(tmp_path, public_url=public) as served:
            visitor = served.visitor()
            form = {"key": "none", "token": visitor.get("/login").form_token()}
            status = visitor.post("/login", form, origin=origin).status
            assert (status != 403) is is_taken, (public, origin)


def test_form_without_an_origin_header_is_accepted_with_its_token(sample: Sample) -> None:
    visitor = sample.visitor()
    visitor.log_in(KEYS[Role.READER])
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for token, status in (("0" * 64, 403), (visitor.get("/").form_token(), 303)):
        body = urlencode({"token": token}).encode()
        assert visitor._ask("POST", "/logout", body, headers).status == status


def test_login_form_without_its_cookie_is_refused(sample: Sample) -> None:
    visitor = sample.visitor()
    token = visitor.get("/login").form_token()
    assert token == form_token(visitor.cookies.pop(FORM_COOKIE))
    assert visitor.post("/login", {"token": token, "key": KEYS[Role.ADMIN]}).status == 403


def test_login_attempts_are_rate_limited(tmp_path_factory: pytest.TempPathFactory) -> None:
    with registry_server(tmp_path_factory.mktemp("logins"), face=Dashboard) as server:
        visitor = Visitor(server.url)
        statuses = [visitor.log_in(key_of(bytes(range(32)))).status for _ in range(36)]
        assert statuses[:30] == [401] * 30
        assert 429 in statuses[30:]
        answer = visitor.log_in(key_of(bytes(range(32))))
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"key=" + b"x" * 20_000, 413), (b"&".join([b"a=1"] * 40), 422), (b"key=%ff\xff", 422)],
    ids=["large", "many fields", "no text"],
)
def test_invalid_form_is_refused(sample: Sample, body: bytes, status: int) -> None:
    visitor = sample.visitor()
    assert visitor._ask("POST", "/login", body, {"origin": visitor.url}).status == status


def test_form_with_a_large_content_length_is_refused_without_reading(sample: Sample) -> None:
    connection = sample.visitor().connection()
    connection.putrequest("POST", "/login")
    connection.putheader("Content-Length", "99999999999")
    connection.endheaders()
    # No body is sent: a server that waits for it would answer 408.
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("host", ["[", "a b", "::", "agent.example:x", ""])
def test_login_page_is_served_for_any_host_header(sample: Sample, host: str) -> None:
    assert sample.visitor().get("/login", host=host).status == 200


def test_pages_answer_only_to_the_public_url_and_addresses(filled: Filled, tmp_path: Path) -> None:
    with filled.served(tmp_path, public_url="https://registry.example") as served:
        visitor = served.visitor()
        refused = visitor.get("/login", host="evil.example")
        assert refused.status == 421
        assert "does not serve the host" in refused.text
        assert "public_url" in refused.text
        for host in ("registry.example", "Registry.Example:443", "localhost:1", "10.0.0.7"):
            assert visitor.get("/login", host=host).status == 200, host
        form = {"key": KEYS[Role.READER], "token": visitor.get("/login").form_token()}
        forged = {"host": "evil.example", "origin": "http://evil.example"}
        assert visitor.post("/login", form, **forged).status == 421
        assert visitor.get("/live", host="evil.example").status == 421
        # Other hosts may request public pages, and paths whose key a browser never sends by itself.
        assert visitor.get("/status/absent", host="evil.example").status == 404
        answer = visitor.get("/api/v1/agents", host="evil.example", x_api_key=KEYS[Role.READER])
        assert answer.status == 200


def test_public_dashboard_refuses_unknown_host_names(filled: Filled, tmp_path: Path) -> None:
    with filled.served(tmp_path, open_dashboard=True) as served:
        visitor = served.visitor()
        assert visitor.get("/", host="evil.example").status == 421
        own = socket.gethostname()
        for host in ("127.0.0.1", "[::1]:8440", "localhost", own, f"{own}.local:8440"):
            assert visitor.get("/", host=host).status == 200, host


def test_any_host_name_shows_the_login_without_a_public_url(sample: Sample) -> None:
    assert sample.visitor().get("/login", host="registry.lan").status == 200


def test_https_public_url_applies_behind_a_plain_http_proxy(filled: Filled, tmp_path: Path) -> None:
    with filled.served(tmp_path, public_url="https://registry.example") as served:
        visitor = served.visitor()
        page = visitor.get("/login", host="registry.example")
        assert page.headers["strict-transport-security"] == "max-age=31536000"
        answer = visitor.log_in(KEYS[Role.READER])
        assert answer.status == 303
        cookies = (*page.cookies, *answer.cookies)
        assert all("Secure" in cookie for cookie in cookies)
        # No other host of the domain can put its own in their place.
        assert all(cookie.startswith("__Host-") and "Path=/;" in cookie for cookie in cookies)
        assert not any("domain" in cookie.lower() for cookie in cookies)
        assert visitor.get("/").status == 200
        session = visitor.cookies.pop(f"__Host-{SESSION_COOKIE}")
        visitor.cookies[SESSION_COOKIE] = session
        assert visitor.get("/").status == 303


def test_login_form_names_the_account_for_password_managers(sample: Sample) -> None:
    assert re.search(r'<input [^>]*autocomplete="username"[^>]* hidden>', sample.visitor().get("/login").html)


def test_https_is_not_required_without_tls(sample: Sample) -> None:
    assert "strict-transport-security" not in sample.visitor().get("/login").headers
