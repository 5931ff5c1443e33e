from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifesign.domain.observation.result_sums import Layer, layers_of
from lifesign.domain.observation.results import LayerResult, Observation
from lifesign.domain.observation.results import ResultClass as R
from lifesign.domain.observation.summary_line import (
    combine_with_card,
    has_lost_interface,
    layer_words,
    liveness_signals,
    probe_summary,
)
from lifesign.domain.targets.target import TargetKind

ASKED = [Layer.DISCOVERY, Layer.TRANSPORT, Layer.READINESS, Layer.MESSAGE]
WITHHELD = "credential lab is only for targets that the definition names"


def layers(**results: R | tuple[R, str]) -> list[tuple[Layer, LayerResult]]:
    members = {
        name: result if isinstance(result, tuple) else (result, "") for name, result in results.items()
    }
    return [
        (Layer(name), LayerResult(result=result, reason=reason)) for name, (result, reason) in members.items()
    ]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (layers(), ""),
        (layers(discovery=R.OK), "a card only: its interface was not probed"),
        (
            layers(discovery=R.OK, transport=(R.TIMEOUT, "no answer within 10 s"), readiness=R.NOT_AN_AGENT),
            "a card only; its interface: timeout (no answer within 10 s)",
        ),
        (
            layers(discovery=R.OK, transport=R.GATED, readiness=R.OK),
            "a card, an interface that requires credentials or payment, a health document",
        ),
        (
            layers(discovery=R.OK, transport=(R.GATED, f"HTTP 401, {WITHHELD}")),
            f"a card, an interface that requires credentials or payment; HTTP 401, {WITHHELD}",
        ),
        (layers(transport=R.OK, readiness=(R.REFUSED, "closed")), "an interface that answers"),
        (layers(discovery=R.REFUSED, readiness=R.OK), "a health document"),
        (layers(discovery=R.OK, message=R.OK), "a card, an answer to a message"),
        (layers(discovery=(R.GATED, "HTTP 401")), "HTTP 401"),
        (layers(discovery=R.REFUSED), ""),
        (layers(discovery=(R.NOT_MEASURED, "prober fault"), transport=(R.DNS_FAILURE, "no name")), "no name"),
        (layers(discovery=(R.BLOCKED_ADDRESS, "private"), readiness=(R.NOT_AN_AGENT, "HTTP 404")), "private"),
        (layers(discovery=(R.NOT_MEASURED, "prober fault")), "prober fault"),
    ],
)
def test_summary_names_the_observed_layers(seen: list[tuple[Layer, LayerResult]], message: str) -> None:
    assert probe_summary(seen) == message


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (layers(discovery=R.OK, transport=R.OK, readiness=R.OK, message=R.OK), 4),
        (layers(discovery=R.OK), 1),
        (layers(discovery=R.GATED, transport=R.GATED), 1),
        (layers(discovery=R.INVALID_DOCUMENT), 0),
    ],
)
def test_summary_of_an_mcp_server_names_no_card(seen: list[tuple[Layer, LayerResult]], expected: int) -> None:
    text = probe_summary(seen, TargetKind.MCP)
    assert text.count(", ") + bool(text) == expected
    assert "card" not in text.split()
    assert "interface" not in text.split()


@pytest.mark.parametrize("kind", [None, *TargetKind])
@given(st.dictionaries(st.sampled_from(ASKED), st.sampled_from(R)))
def test_liveness_signals_are_counted_over_all_alive_targets(
    kind: TargetKind | None, results: dict[Layer, R]
) -> None:
    seen = {layer.value: LayerResult(result=result) for layer, result in results.items()}
    observation = Observation.model_construct(
        observed_at=datetime(2026, 1, 1, tzinfo=UTC),
        discovery=seen.get("discovery"),
        transport=seen.get("transport"),
        readiness=seen.get("readiness"),
        message=seen.get("message"),
    )
    assert bool(liveness_signals([*layers_of(observation)], kind)) == observation.is_liveness_signal


@given(st.dictionaries(st.sampled_from(ASKED), st.sampled_from(R)), st.none() | st.sampled_from(R))
def test_known_card_is_added_to_liveness_signals(results: dict[Layer, R], card: R | None) -> None:
    seen = layers(**{layer.value: results[layer] for layer in ASKED if layer in results})
    standing = combine_with_card(seen, card)
    has_card = card is R.OK and Layer.DISCOVERY not in results and bool(liveness_signals(seen))
    assert [*standing] == [*(layers(discovery=R.OK) if has_card else ()), *seen]


@pytest.mark.parametrize(
    ("seen", "is_lost"),
    [
        (layers(discovery=R.NOT_AN_AGENT, readiness=R.OK), True),
        (layers(discovery=R.REFUSED, transport=R.NOT_MEASURED, readiness=R.OK), True),
        (layers(discovery=R.NOT_AN_AGENT, transport=R.NOT_AN_AGENT, readiness=R.OK), False),
        (layers(discovery=R.RATE_LIMITED, readiness=R.OK), False),
        (layers(readiness=R.OK), False),
        # Its host is unreachable: the former end is compared with the next result.
        (layers(discovery=R.REFUSED), False),
    ],
)
def test_interface_is_lost_if_its_card_is_lost_too(
    seen: list[tuple[Layer, LayerResult]], *, is_lost: bool
) -> None:
    assert has_lost_interface(seen) is is_lost


@pytest.mark.parametrize("kind", [None, *TargetKind])
def test_each_layer_has_a_unique_word(kind: TargetKind | None) -> None:
    words = layer_words(kind)
    assert set(words) == set(Layer)
    assert len(set(words.values())) == len(Layer)
    assert ("card" in words.values()) == (kind is not TargetKind.MCP)
