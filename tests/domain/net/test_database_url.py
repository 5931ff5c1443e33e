"""URLs of databases: which are accepted, and how they are shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url
from tests.support.properties import examples

from lifesign.domain.net.database_url import has_one_reading, shown_database_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ah:s3cret@db/ah", "postgresql://ah:...@db/ah"),
        (
            "postgresql://ah:s3cret@db:5432/ah?sslmode=require",
            "postgresql://ah:...@db:5432/ah?sslmode=require",
        ),
        ("postgresql://ah:s%40%2F%20cret@[::1]:1/ah", "postgresql://ah:...@[::1]:1/ah"),
        ("postgresql://:s3cret@/ah?host=/run/pg", "postgresql://:...@/ah?host=/run/pg"),
        ("postgresql://ah:@db/ah", "postgresql://ah:...@db/ah"),
        ("postgresql://ah@db/ah", "postgresql://ah@db/ah"),
        ("postgresql://db:5432/ah", "postgresql://db:5432/ah"),
        ("postgresql:///ah?host=/run/pg&password=s3cret", "postgresql:///ah?host=/run/pg&password=..."),
        ("sqlite:////var/lib/a b@c.db", "sqlite:////var/lib/a b@c.db"),
        ("sqlite://", "sqlite://"),
    ],
)
def test_password_of_a_database_is_hidden(url: str, shown: str) -> None:
    assert shown_database_url(url) == shown
    assert shown_database_url(shown) == shown


@pytest.mark.parametrize(
    "password",
    [
        "correct horse s3cret",
        "x\ts3cret",
        "x@y/s3cret",
        "abc@s3cret:s3cret",
        "x/s3cret",
        "12/s3cret",
        "x?s3cret",
        "12?s3cret",
        "x#s3cret",
        "x:s3cret",
        "s3cret\n",
        "[s3cret",
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql"])
def test_url_with_a_password_that_is_not_encoded_is_shown_as_its_scheme(password: str, scheme: str) -> None:
    for url in (f"{scheme}://ah:{password}@db/ah", f"{scheme}://ah:{password}@db/ah?host=/run/pg"):
        assert not has_one_reading(url)
        assert shown_database_url(url) == f"{scheme}://..."


def test_port_must_be_a_number() -> None:
    assert not has_one_reading("postgresql://ah@db:s3cret/ah")
    assert shown_database_url("postgresql://db:s3cret") == "postgresql://..."


@given(st.text(alphabet="ab1 @:/?#[]%=&.", max_size=24), st.text(alphabet="ab1@:/?# ", max_size=8))
@settings(max_examples=examples(300))
def test_accepted_url_has_the_parts_that_sqlalchemy_finds(text: str, password: str) -> None:
    url = f"postgresql://u:SECRET{password}SECRET@{text}"
    if has_one_reading(url):
        parsed = make_url(url)
        assert parsed.username == "u"
        assert f"SECRET{password}SECRET" == parsed.password
    assert "SECRET" not in str(shown_database_url(url))
