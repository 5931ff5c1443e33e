from pathlib import Path

import pytest
from mcp_types import CallToolResult, TextContent

from lifesign.adapter.tools.server_secrets import ServerSecrets
from lifesign.adapter.tools.tools_file import Upstream
from lifesign.domain.credentials.disguise import MAX_ENTITIES
from lifesign.errors import InvalidValue

SECRET = "of-the-server"


def of_headers(*variables: str) -> Upstream:
    headers = {f"x-{name}": {"env": name, "prefix": "Bearer "} for name in variables}
    return Upstream.model_validate(
        {
            "url": "https://acme.example/mcp",
            "headers": headers,
            "tools": {"run": {"usd_per_call": 0}},
        }
    )


def test_secrets_are_read_again_at_each_start(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first-secret\n")
    upstream = Upstream.model_validate(
        {
            "command": ["acme"],
            "environment": {"KEY": {"file": str(tmp_path / "key")}},
            "tools": {"run": {"usd_per_call": 0}},
        }
    )
    secrets = ServerSecrets(upstream, {})
    assert not secrets.scrubber
    assert secrets.read() == {"KEY": "first-secret"}
    (tmp_path / "key").write_text("second-secret\n")
    assert secrets.read() == {"KEY": "second-secret"}
    assert secrets.read() == {"KEY": "second-secret"}
    # A call that runs may have sent the former one.
    assert secrets.scrubber.secrets == {"first-secret", "second-secret"}
    (tmp_path / "key").write_text("third-secret\n")
    secrets.read()
    assert secrets.scrubber.secrets == {"second-secret", "third-secret"}
    with pytest.raises(InvalidValue, match="MISSING"):
        ServerSecrets(of_headers("MISSING"), {}).read()


def test_secrets_are_removed_from_a_result_with_and_without_their_prefix() -> None:
    secrets = ServerSecrets(of_headers("ONE", "TWO"), {"ONE": 'of"the"server', "TWO": "short"})
    assert secrets.read() == {"x-ONE": 'Bearer of"the"server', "x-TWO": "Bearer short"}
    text = 'of"the"server, Bearer of"the"server, short'
    result = CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content={"sent": 'of"the"server'},
        is_error=True,
        _meta={"acme/cost": {"usd": 0.5}},
    )
    cleaned = secrets.cleaned(result, {"key": "the"})
    assert "the" not in cleaned.model_dump_json()
    assert "short" in cleaned.model_dump_json()
    assert (cleaned.is_error, cleaned.meta) == (True, {"acme/cost": {"usd": 0.5}})
    other = CallToolResult(content=[TextContent(type="text", text="no")])
    assert secrets.cleaned(other, {}) is other


@pytest.mark.parametrize(
    "written", [SECRET, SECRET.upper(), SECRET.encode().hex(), SECRET.replace("-", "%2d")]
)
def test_secret_that_the_arguments_contain_is_not_removed(written: str) -> None:
    secrets = ServerSecrets(of_headers("ONE"), {"ONE": SECRET})
    secrets.read()
    arguments = {"rows": [{"name": f"first.{written}.third"}]}
    words = f"unknown: {written}"
    assert secrets.cleaned_words(words, arguments) == words
    result = CallToolResult(content=[TextContent(type="text", text=words)], is_error=True)
    assert secrets.cleaned(result, arguments) is result
    assert secrets.cleaned(result, {}) != result


def test_guess_of_one_secret_shows_no_other() -> None:
    secrets = ServerSecrets(of_headers("ONE", "TWO"), {"ONE": "reporting-user", "TWO": SECRET})
    secrets.read()
    words = secrets.cleaned_words(f"reporting-user:{SECRET}", {"sql": "-- reporting-user"})
    assert words == "reporting-user:REMOVED-SECRE"


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("Bearer sk-0123456789", "sk-0123456789"),
        ("Basic cHJvYmVyOnBhc3N3b3JkLTk5", "password-99"),
        ("session=cookie-012345; x=1", "cookie-012345"),
    ],
)
def test_parts_of_a_header_are_removed(value: str, part: str) -> None:
    headers = {"authorization": {"env": "ONE"}}
    secrets = ServerSecrets(
        Upstream.model_validate(
            {"url": "https://acme.example/mcp", "headers": headers, "tools": {"run": {"usd_per_call": 0}}}
        ),
        {"ONE": value},
    )
    secrets.read()
    assert part not in secrets.cleaned_words(f"invalid: {part}", {})


def test_beginning_of_a_secret_is_not_removed() -> None:
    secrets = ServerSecrets(of_headers("ONE"), {"ONE": SECRET})
    secrets.read()
    for beginning in (SECRET[:8], SECRET[:4].encode().hex(), SECRET[:-1]):
        assert secrets.cleaned_words(f"unknown: {beginning}", {}) == f"unknown: {beginning}"


def test_text_that_cannot_be_searched_is_refused() -> None:
    secrets = ServerSecrets(of_headers("ONE"), {"ONE": SECRET})
    secrets.read()
    with pytest.raises(ValueError, match="entities"):
        secrets.cleaned_words("no", {"text": "&#65;" * (MAX_ENTITIES + 1)})
