import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, get_args

from pydantic import BaseModel

from lifesign.domain.observation.peer_texts import peer_texts, with_peer_texts
from lifesign.domain.observation.results import LayerResult, Observation, ProbedDocument, ResultClass

NOW = datetime(2026, 11, 28, tzinfo=UTC)
LAYERS = ("discovery", "transport", "readiness", "message", "tools")


def has_text(annotation: Any) -> bool:
    """Return whether a field may have any text, which an enumeration has not."""
    return annotation is str or any(has_text(part) for part in get_args(annotation))


def texts_of(model: type[BaseModel]) -> set[str]:
    """Return the names of the fields with texts."""
    return {name for name, field in model.model_fields.items() if has_text(field.annotation)}


def leaves(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from leaves(part)


def test_check_covers_all_text_fields_of_an_observation() -> None:
    # A new one belongs into `peer_texts`, unless no answer of a peer can be a part of it.
    assert texts_of(Observation) == {
        "agent_id", "target_url", "reported_agent_id", "card_etag", "network_class", "address", "paths",
    }  # fmt: skip
    assert texts_of(LayerResult) == {"reason", "evidence"}
    assert texts_of(ProbedDocument) == set()


def test_all_texts_of_the_target_are_returned_and_replaced() -> None:
    for subject in ({"agent_id": "own-agent"}, {"target_url": "https://own.example/"}):
        observation = Observation.model_validate(
            {
                "observed_at": NOW,
                "reported_agent_id": "canary-name",
                "card_etag": '"canary-tag"',
                "network_class": "10.0.0.0/8",
                "address": "10.0.0.1",
                "document": {"status": "healthy", "timestamp": NOW},
                "paths": {"/own": {"result": "ok", "reason": "canary-path"}},
                "assertions": [
                    {
                        "of": "card",
                        "check": "equals",
                        "expected": "canary-expected",
                        "actual": 'canary-"actual"',
                        "result": "assertion_failed",
                    },
                ],
                "login": {
                    "origin": "https://canary.example",
                    "schemes": ["canary-scheme"],
                    "card_schemes": ["apiKey header canary-key"],
                    "metadata": {
                        "result": "invalid",
                        "reason": "canary-fault",
                        "authorization_servers": ["https://canary.example"],
                        "scopes": ["canary-scope"],
                    },
                },
            }
            | {layer: {"result": "ok", "reason": f"canary-{layer}"} for layer in LAYERS}
            | subject
        )
        found = "\n".join(peer_texts(observation))
        for text in leaves(json.loads(observation.model_dump_json())):
            if "canary" in text:
                assert text in found or json.dumps(text)[1:-1] in found
        for layer in LAYERS:
            assert f"canary-{layer}" in found
        replaced = with_peer_texts(observation, lambda text: text.replace("canary", "x"))
        assert Observation.model_validate_json(replaced.model_dump_json()) == replaced
        assert "canary" not in replaced.model_dump_json()
        assert with_peer_texts(observation, str) == observation


def test_peer_texts_of_absent_layers_are_empty() -> None:
    refused = LayerResult(result=ResultClass.REFUSED)
    observation = Observation(target_url="https://agent.example/", observed_at=NOW, discovery=refused)
    assert peer_texts(observation) == [""]
