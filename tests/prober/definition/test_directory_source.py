"""The directories of a probe definition."""

from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.prober.definition.directory_source import DirectorySource


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ({"url": "https://Directory.example:8443/agents"}, "directory.example"),
        ({"url": "directory.example"}, "directory.example"),
        ({"file": "lists/My-Agents.csv"}, "my-agents.csv"),
        ({"file": "agents.txt", "name": "agents"}, "agents"),
    ],
)
def test_a_directory_is_called_by_its_name_its_host_or_its_file(source: dict[str, Any], label: str) -> None:
    assert DirectorySource.model_validate(source).label == label


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({}, {"url", "file"}),
        ({"url": "https://a.example", "file": "a.txt"}, {"url", "file"}),
        ({"file": "a.txt", "key_file": "key"}, {"file", "key"}),
        ({"url": "http://a.example/list", "key_file": "key"}, {"url", "key"}),
    ],
)
def test_a_directory_is_at_a_url_or_in_a_file(source: dict[str, Any], named: set[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        DirectorySource.model_validate(source)
    ((place, result),) = [(error["loc"], error["msg"]) for error in caught.value.errors()]
    assert place == ()
    assert named == {"url", "file", "key"} & set(result.split())


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        DirectorySource.model_validate({"url": "https://user:hunter2@directory.example/"})
    ((place, result),) = [(error["loc"], error["msg"]) for error in caught.value.errors()]
    assert place == ("url",)
    assert "password" in result
    assert "hunter2" not in result
