"""Settings of single targets in a probe definition."""

from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.prober.definition.models import ProbeDefinition
from lifesign.prober.definition.target_settings import LayerSettings, MessageSettings, TargetSettings

URL = "https://agent.example/"


def defined(*targets: Any) -> ProbeDefinition:
    return ProbeDefinition.model_validate({
        "name": "a", "contact": "mailto:ops@agent.example", "targets": targets,
    })  # fmt: skip


def refusals(*targets: Any) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        defined(*targets)
    return [(error["loc"], error["type"]) for error in caught.value.errors()]


def test_a_mapping_gives_one_target_layers_of_its_own() -> None:
    definition = defined({"url": "agent.example", "ask": {"message": {"text": "hi"}}}, "other.example")
    assert definition.target_urls == (URL, "https://other.example/")
    asked = LayerSettings(message=MessageSettings(text="hi"))
    assert definition.settings_by_url == {URL: TargetSettings(url=URL, ask=asked)}
    assert definition.ask.message is None


def test_a_mapping_without_settings_is_the_same_as_its_url() -> None:
    assert defined({"url": URL}, {"url": URL, "ask": None}) == defined(URL)
    assert defined({"url": URL}).settings_by_url == {}


@pytest.mark.parametrize("order", [1, -1])
def test_settings_are_kept_if_the_url_is_also_listed_alone(order: int) -> None:
    targets = [{"url": URL, "ask": {"health": False}}, "agent.example", "b.example"][::order]
    definition = defined(*targets)
    assert sorted(definition.target_urls) == [URL, "https://b.example/"]
    assert definition.settings_by_url[URL].ask == LayerSettings(health=False)


def test_two_different_settings_of_a_url_are_refused() -> None:
    same = {"url": URL, "ask": {"health": False}}
    assert defined(same, same).target_urls == (URL,)
    assert refusals(same, {"url": "agent.example", "ask": {}}) == [(("targets",), "target_twice")]


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
def test_a_wrong_target_is_refused_at_its_place(target: Any, place: Any, kind: str) -> None:
    assert refusals(target) == [(place, kind)]
