"""Layers that a probe checks, in a probe definition."""

from typing import Any

import pytest
from pydantic import ValidationError

from lifesign.prober.definition.layer_settings import MAX_PATHS, LayerSettings


def test_paths_are_requested_once_in_their_order() -> None:
    assert LayerSettings(paths=("/b", "/a", "/b")).paths == ("/b", "/a")


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"card": False, "transport": False, "health": False}, "nothing_asked"),
        ({"card": False, "message": {"text": "hi"}, "transport": False}, "no_card"),
        ({"message": {"text": ""}}, "string_too_short"),
        ({"call": {"tool": "search"}}, "no_tools"),
        ({"tools": True, "call": {"tool": ""}}, "string_too_short"),
        ({"tools": True, "call": {"tool": "a", "arguments": {"q": float("nan")}}}, "arguments"),
        ({"tools": True, "call": {"tool": "a", "arguments": {"q": "x" * 65_536}}}, "arguments_too_large"),
        ({"paths": [f"/{number}" for number in range(MAX_PATHS + 1)]}, "too_long"),
    ],
)
def test_contradictory_layer_settings_are_refused(members: dict[str, Any], kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LayerSettings.model_validate(members)
    assert [error["type"] for error in caught.value.errors()] == [kind]
