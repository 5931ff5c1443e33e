from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lifesign.dashboard.safe_redirect import HOME_PATH, MAX_CHARACTERS, local_path

SITE = "https://registry.example"


def as_browsers_read_it(text: str) -> str:
    """Return the address as a browser reads it before it extracts the host (WHATWG URL, basic parser)."""
    kept = "".join(character for character in text.strip() if character not in "\t\r\n")
    return kept.replace("\\", "/")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/agents",
        "/agents/a.b~c:d-e_f",
        "/agents?status=dead&pool=a%20b&q=%2F%2F",
        "/tasks/task_1?done=drain",
        "/agents/%C3%A9",
        "/events?subject=a/b?c",
    ],
)
def test_redirect_to_a_local_path_is_unchanged(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "message",
    [
        "",
        "agents",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\/evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "/\r\n/evil.example",
        "/agents\r\nSet-Cookie: a=b",
        "/agents\n",
        "/agents//evil.example",
        "/./\\evil.example",
        "/ /evil.example",
        "https://evil.example/",
        "https:evil.example",
        "javascript:alert(1)",
        "?next=/",
        "/agents#x",
        "/\u2215evil.example",
        "/\0",
        "/login",
        "/login?next=/login",
        "/logout",
        "/" + "a" * MAX_CHARACTERS,
    ],
)
def test_unsafe_redirect_leads_to_the_overview(message: str) -> None:
    assert local_path(message) == HOME_PATH


@given(st.text(alphabet="/\\:@.?#%25fFevil \t\r\n\u2215", max_size=20))
@example("/%2f%2fevil.example")
@example("/%5cevil.example")
@example("/%0d%0aSet-Cookie:a=b")
@example("/@evil.example")
@example("/.//evil.example")
@example("/..//evil.example")
def test_any_redirect_stays_on_this_server(message: str) -> None:
    path = local_path(message)
    assert path.isascii()
    assert path.isprintable()
    assert urlsplit(urljoin(f"{SITE}/login", as_browsers_read_it(path))).netloc == urlsplit(SITE).netloc
