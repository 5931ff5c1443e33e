from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.domain.credentials.secret_place import MAX_FILE_NAME_CHARS, SecretPlace, env_text


@pytest.mark.parametrize(("member", "name"), [("file", "a.key"), ("env", "A_KEY"), ("systemd", "a.key")])
def test_place_is_shown_by_its_name(member: str, name: str) -> None:
    assert str(SecretPlace.model_validate({member: name})).split()[-1] == name


@pytest.mark.parametrize("given", [{}, {"file": "a", "env": "A"}, {"env": "A", "systemd": "a"}])
def test_secret_has_exactly_one_place(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as refused:
        SecretPlace.model_validate(given)
    assert [error["type"] for error in refused.value.errors()] == ["one_source"]


@pytest.mark.parametrize(
    "given",
    [
        {"file": ""},
        {"file": "a\nb"},
        {"file": "a" * (MAX_FILE_NAME_CHARS + 1)},
        {"env": "1A"},
        {"env": "A" * 129},
        {"systemd": "../a"},
        {"systemd": "a" * 256},
        {"file": "a", "mode": "0600"},
    ],
    ids=lambda given: ascii(given)[:20],
)
def test_secret_place_with_none_or_two_sources_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SecretPlace.model_validate(given)


def test_path_is_relative_to_the_file_of_settings() -> None:
    context = {"directory": Path("/etc/lifesign")}
    assert SecretPlace.model_validate({"file": "a.key"}, context=context).file == Path("/etc/lifesign/a.key")
    assert SecretPlace.model_validate({"file": "/run/a.key"}, context=context).file == Path("/run/a.key")
    assert SecretPlace.model_validate({"file": "a.key"}).file == Path("a.key")


@pytest.mark.parametrize("name", ["TOKEN", "LAB_TOKEN", "AZURE_OPENAI_API_KEY2"])
def test_error_quotes_the_usual_name_of_a_variable(name: str) -> None:
    assert name in env_text(name)


@pytest.mark.parametrize(
    "token",
    ["ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAIOSFODNN7EXAMPLE", "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
     "JBSWY3DPEHPK3PXP", "Zq7secretVALUE99", "0123456789abcdef", "sommerregen"],
)  # fmt: skip
def test_error_does_not_quote_a_token_in_place_of_a_variable(token: str) -> None:
    assert token not in env_text(token)
