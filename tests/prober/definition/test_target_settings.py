"""Settings of single targets in a probe definition."""

from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.prober.definition.layer_settings import LayerSettings, MessageSettings
from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.definition.target_settings import TargetSettings, paths_of

URL = "https://agent.example/"


def defined(*targets: Any) -> ProbeDefinition:
    return ProbeDefinition.model_validate({
        "name": "a", "contact": "mailto:ops@agent.example", "targets": targets,
    })  # fmt: skip


def refusals(*targets: Any) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        defined(*targets)
    return [(error["loc"], error["type"]) for error in caught.value.errors()]


def test_mapping_of_a_target_sets_its_own_layers() -> None:
    definition = defined({"url": "agent.example", "ask": {"message": {"text": "hi"}}}, "other.example")
    assert definition.target_urls == (URL, "https://other.example/")
    asked = LayerSettings(message=MessageSettings(text="hi"))
    assert definition.settings_by_url == {URL: TargetSettings(url=URL, ask=asked)}
    assert definition.ask.message is None


def test_a_mapping_without_settings_is_the_same_as_its_url() -> None:
    assert defined({"url": URL}, {"url": URL, "ask": None}) == defined(URL)
    assert defined({"url": URL}).settings_by_url == {}


@pytest.mark.parametrize("order", [1, -1])
def test_settings_are_kept_if_the_url_is_also_listed(order: int) -> None:
    targets = [{"url": URL, "ask": {"health": False}}, "agent.example", "b.example"][::order]
    definition = defined(*targets)
    assert sorted(definition.target_urls) == [URL, "https://b.example/"]
    assert definition.settings_by_url[URL].ask == LayerSettings(health=False)


def test_two_different_settings_of_a_url_are_refused() -> None:
    same = {"url": URL, "ask": {"health": False}}
    assert defined(same, same).target_urls == (URL,)
    assert refusals(same, {"url": "agent.example", "ask": {}}) == [(("targets",), "target_twice")]


def test_paths_of_assertions_are_added_to_the_requested_paths() -> None:
    asked = LayerSettings(paths=("/ping",))
    assertions = [{"of": path, "status": 200} for path in ("/status", "/ping", "health")]
    target = TargetSettings.model_validate({"url": URL, "assertions": assertions})
    assert paths_of(target, asked) == ("/ping", "/status")
    assert paths_of(None, asked) == ("/ping",)
    assert [check.of for check in target.checks] == ["/status", "/ping", "health"]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"assertions": [{"of": "message", "text_contains": "OK"}]}, "not_asked"),
        ({"assertions": [{"of": "tool", "text_contains": "OK"}]}, "not_asked"),
        ({"kind": "a2a", "ask": {"tools": True, "call": {"tool": "a"}}}, "call_of_an_agent"),
        ({"kind": "mcp", "ask": {"message": {"text": "hi"}}}, "message_to_a_server"),
        ({"kind": "mcp", "assertions": [{"of": "message", "status": 200}]}, "message_to_a_server"),
        ({"assertions": [{"of": "health", "status": 200}], "ask": {"health": False}}, "not_asked"),
        ({"assertions": [{"of": f"/{number}", "status": 200} for number in range(9)]}, "too_many_paths"),
        ({"assertions": [{"of": "health", "status": 200}] * 33}, "too_long"),
        ({"assertions": [{"of": "card", "status": 200, "text_contains": "x"}] * 17}, "too_many_checks"),
    ],
)
def test_assertions_need_answers_and_have_a_limit(settings: dict[str, Any], kind: str) -> None:
    assert [found for _, found in refusals({"url": URL} | settings)] == [kind]


@pytest.mark.parametrize(
    ("target", "place", "kind"),
    [
        (7, ("targets", 0, "url"), "string_type"),
        ({"ask": {}}, ("targets", 0, "url"), "missing"),
        ({"url": URL, "asks": {}}, ("targets", 0, "asks"), "extra_forbidden"),
        ({"url": "ftp://agent.example"}, ("targets", 0, "url"), "target"),
        ({"url": URL, "ask": {"card": False}}, ("targets", 0, "ask"), "no_card"),
    ],
)
def test_invalid_target_settings_are_refused_with_their_path(target: Any, place: Any, kind: str) -> None:
    assert refusals(target) == [(place, kind)]
