import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.assertions import asserted

from lifesign.domain.health.document import HealthStatus
from lifesign.domain.observation.results import (
    INCONCLUSIVE,
    InconclusiveReason,
    LayerResult,
    Observation,
    ResultClass,
    not_measured,
    reason_of_inconclusive,
)

SEEN_AT = "2026-07-01T12:00:00Z"
LAYERS = ("discovery", "transport", "readiness", "message")
RESULTS = sorted(ResultClass)
WITH_DOCUMENT = {ResultClass.OK, ResultClass.STALE_DOCUMENT}


def wire(**members: Any) -> str:
    """The JSON of an observation of agent `a`; a layer may be given by its class alone."""
    for layer in LAYERS:
        if isinstance(members.get(layer), str):
            members[layer] = {"result": members[layer]}
    if members.get("readiness", {}).get("result") in WITH_DOCUMENT:
        is_stale = members["readiness"]["result"] == "stale_document"
        document = {"status": "unhealthy", "timestamp": SEEN_AT, "is_stale": is_stale}
        members.setdefault("document", document)
    return json.dumps({"agent_id": "a", "observed_at": SEEN_AT} | members)


def observed(**members: Any) -> Observation:
    return Observation.model_validate_json(wire(**members))


def refusal(**members: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        observed(**members)
    return str(refused.value)


@pytest.mark.parametrize(
    ("layer", "results"),
    [
        ("discovery", {"ok"}),
        ("transport", {"ok", "gated", "credentials_rejected", "token_error"}),
        ("message", {"ok", "gated", "credentials_rejected", "token_error"}),
        ("readiness", {"ok"}),
    ],
)
def test_liveness_signals_are_card_interface_and_valid_document(layer: str, results: set[str]) -> None:
    assert {str(result) for result in RESULTS if observed(**{layer: result}).is_liveness_signal} == results


def test_five_result_classes_are_inconclusive() -> None:
    assert {str(result) for result in INCONCLUSIVE} == {
        "blocked_address", "redirect_refused", "rate_limited", "internal", "not_measured"
    }  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_measured_result_without_a_liveness_signal_is_a_failure(layer: str) -> None:
    failures = {result for result in RESULTS if observed(**{layer: result}).is_measured_failure}
    neither = {
        ResultClass.OK, ResultClass.GATED, ResultClass.CREDENTIALS_REJECTED, ResultClass.TOKEN_ERROR,
        ResultClass.STALE_DOCUMENT,
    }  # fmt: skip
    assert failures == set(RESULTS) - INCONCLUSIVE - neither


@pytest.mark.parametrize("life", [{"discovery": "ok"}, {"transport": "gated"}, {"readiness": "ok"}])
def test_one_liveness_signal_outweighs_all_failures(life: dict[str, str]) -> None:
    observation = observed(**dict.fromkeys(LAYERS, "timeout") | life)
    assert observation.is_liveness_signal
    assert not observation.is_measured_failure


def test_gated_card_is_neither_liveness_signal_nor_failure() -> None:
    observation = observed(discovery="gated", transport="not_measured")
    assert not observation.is_liveness_signal
    assert not observation.is_measured_failure


def test_a_stale_document_hides_no_failure() -> None:
    assert observed(readiness="stale_document", transport="refused").is_measured_failure
    no_card = observed(discovery="not_an_agent", readiness="stale_document")
    assert no_card.is_measured_failure
    assert no_card.result is ResultClass.NOT_AN_AGENT


@pytest.mark.parametrize("card", [*sorted(INCONCLUSIVE), "gated"])
def test_missing_document_does_not_decide_about_an_unmeasured_card(card: str) -> None:
    for document in sorted(set(RESULTS) - WITH_DOCUMENT):
        observation = observed(discovery=card, readiness=document)
        assert not observation.is_measured_failure, document
        # A challenge comes from a live agent, wherever it occurs.
        is_challenge = document in {"gated", "credentials_rejected", "token_error"}
        assert observation.result == ("gated" if is_challenge else card), document


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("result", ["credentials_rejected", "token_error"])
def test_a_fault_of_a_credential_counts_as_gated(layer: str, result: str) -> None:
    observation = observed(**{layer: result})
    assert observation.result is ResultClass.GATED
    assert not observation.is_measured_failure


@pytest.mark.parametrize("card", sorted(INCONCLUSIVE))
def test_target_without_a_requested_card_is_alive_by_other_signals(card: str) -> None:
    assert observed(discovery=card, readiness="ok").result is ResultClass.OK
    assert observed(discovery=card, transport="gated", readiness="not_an_agent").result is ResultClass.GATED


@pytest.mark.parametrize("card", [*sorted(INCONCLUSIVE), "gated"])
def test_the_declared_interface_that_fails_counts_though_the_card_could_not_be_asked(card: str) -> None:
    observation = observed(discovery=card, transport="refused", readiness="not_an_agent")
    assert observation.is_measured_failure
    assert observation.result is ResultClass.REFUSED


@pytest.mark.parametrize("document", ["rate_limited", "not_measured", "internal", "blocked_address"])
def test_missing_card_does_not_decide_while_the_document_is_unmeasured(document: str) -> None:
    observation = observed(discovery="not_an_agent", readiness=document)
    assert not observation.is_measured_failure
    assert observation.result == document
    assert observed(discovery="refused", readiness=document).result is ResultClass.REFUSED
    assert observed(discovery="not_an_agent", transport="timeout", readiness=document).is_measured_failure


def test_document_behind_a_redirect_does_not_make_a_host_an_agent() -> None:
    assert observed(discovery="not_an_agent", readiness="redirect_refused").is_measured_failure


def test_document_failure_counts_if_only_the_document_is_requested() -> None:
    assert observed(readiness="not_an_agent").is_measured_failure
    assert observed(transport="not_measured", readiness="refused").is_measured_failure


@given(st.fixed_dictionaries({layer: st.none() | st.sampled_from(RESULTS) for layer in LAYERS}))
def test_result_class_agrees_with_measured_failure(layers: dict[str, ResultClass | None]) -> None:
    observation = observed(**layers_of(layers))
    assert observation.is_measured_failure == LayerResult(result=observation.result).has_failed
    # No agent is down by an unasked layer.
    if observation.is_measured_failure:
        assert observation.result in layers.values()


def test_stale_document_is_neither_liveness_signal_nor_failure() -> None:
    for card in (None, "blocked_address"):
        observation = observed(discovery=card, readiness="stale_document")
        assert not observation.is_liveness_signal
        assert not observation.is_measured_failure
        assert observation.result is ResultClass.STALE_DOCUMENT


@pytest.mark.parametrize("other", [{"discovery": "not_an_agent"}, {"transport": "refused"}])
def test_renewed_document_of_a_wrong_clock_is_a_liveness_signal(other: dict[str, str]) -> None:
    document = {"status": "healthy", "timestamp": SEEN_AT, "is_stale": True, "is_renewed": True}
    observation = observed(readiness="stale_document", document=document, **other)
    assert observation.is_liveness_signal
    assert observation.result is ResultClass.STALE_DOCUMENT
    assert observed(readiness="stale_document", document=document, transport="gated").result is (
        ResultClass.GATED
    )


def test_results_of_additional_paths_do_not_decide() -> None:
    observation = observed(paths={"/ping": {"result": "ok"}, "/live?x=1": {"result": "timeout"}})
    assert not observation.is_liveness_signal
    assert not observation.is_measured_failure
    assert observation.result is ResultClass.NOT_MEASURED
    assert observation.paths is not None
    assert observation.paths["/ping"].result is ResultClass.OK


def test_empty_observation_is_neither_liveness_signal_nor_failure() -> None:
    assert not observed().is_liveness_signal
    assert not observed().is_measured_failure


@given(st.fixed_dictionaries({layer: st.none() | st.sampled_from(RESULTS) for layer in LAYERS}))
def test_liveness_signal_and_failure_exclude_each_other(layers: dict[str, ResultClass | None]) -> None:
    observation = observed(**layers_of(layers))
    assert not (observation.is_liveness_signal and observation.is_measured_failure)
    if all(result is None or result in INCONCLUSIVE for result in layers.values()):
        assert not observation.is_liveness_signal
        assert not observation.is_measured_failure


def layers_of(layers: dict[str, ResultClass | None]) -> dict[str, str]:
    return {layer: result for layer, result in layers.items() if result is not None}


@given(
    layers=st.fixed_dictionaries({layer: st.none() | st.sampled_from(RESULTS) for layer in LAYERS}),
    reason=st.text(max_size=500),
    latency=st.none() | st.floats(0, 1e6),
    moment=st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - the zone comes next
)
def test_written_records_read_back_equal(
    layers: dict[str, ResultClass | None], reason: str, latency: float | None, moment: datetime
) -> None:
    members: dict[str, Any] = {
        layer: {"result": result, "reason": reason, "latency_ms": latency}
        for layer, result in layers_of(layers).items()
    }
    observation = observed(**members, observed_at=moment.isoformat())
    assert Observation.model_validate_json(observation.model_dump_json()) == observation


def test_observation_of_a_target_without_a_record_has_its_url() -> None:
    observation = observed(agent_id=None, target_url="https://agent.example/a2a?x=1")
    assert observation.target_url == "https://agent.example/a2a?x=1"


@pytest.mark.parametrize(
    "subject",
    [
        {"agent_id": None},
        {"target_url": "https://agent.example/"},
        {"agent_id": "a/b"},
        {"agent_id": "a\n"},
        {"agent_id": ""},
        {"agent_id": "a" * 129},
        {"agent_id": None, "target_url": "ftp://agent.example/"},
        {"agent_id": None, "target_url": "https://agent.example/ x"},
        {"agent_id": None, "target_url": "https://agent.example/" + "x" * 2048},
    ],
)
def test_an_observation_has_exactly_one_subject(subject: dict[str, Any]) -> None:
    refusal(**subject)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"readiness": {"result": "ok"}, "document": None}, "go together"),
        ({"readiness": {"result": "stale_document"}, "document": None}, "go together"),
        ({"document": {"status": "healthy", "timestamp": SEEN_AT}}, "go together"),
        (
            {"readiness": "timeout", "document": {"status": "healthy", "timestamp": SEEN_AT}},
            "go together",
        ),
        (
            {"readiness": "ok", "document": {"status": "healthy", "timestamp": SEEN_AT, "is_stale": True}},
            "contradicts the result",
        ),
        (
            {"readiness": "stale_document", "document": {"status": "healthy", "timestamp": SEEN_AT}},
            "contradicts the result",
        ),
    ],
)
def test_document_without_a_matching_result_is_refused(members: dict[str, Any], why: str) -> None:
    assert why in refusal(**members)


@pytest.mark.parametrize(
    "members",
    [
        {"observed_at": "2026-07-01T12:00:00"},
        {"observed_at": "yesterday"},
        {"observed_at": 1_780_000_000},
        {"certificate_expires_at": "2026-07-01"},
        {"surprise": 1},
        {"transport": "perfect"},
        {"transport": {"result": "ok", "surprise": 1}},
        {"transport": {"result": "ok", "reason": "x" * 501}},
        {"transport": {"result": "ok", "reason": 7}},
        {"transport": {"result": "ok", "status_code": 99}},
        {"transport": {"result": "ok", "status_code": 600}},
        {"transport": {"result": "ok", "status_code": "200"}},
        {"transport": {"result": "ok", "latency_ms": -0.1}},
        {"transport": {"result": "ok", "latency_ms": float("nan")}},
        {"transport": {"result": "ok", "latency_ms": float("inf")}},
        {"readiness": "ok", "document": {"status": "fine", "timestamp": SEEN_AT}},
        {"readiness": "ok", "document": {"status": "healthy", "timestamp": "2026-07-01T12:00:00"}},
        {"readiness": "ok", "document": {"status": "healthy", "timestamp": SEEN_AT, "response_ratio": 1.01}},
        {"readiness": "ok", "document": {"status": "healthy", "timestamp": SEEN_AT, "latency_p99_ms": -1}},
        {"readiness": "ok", "document": {"status": "healthy", "timestamp": SEEN_AT, "age_s": float("inf")}},
        {"reported_agent_id": ""},
        {"reported_agent_id": "x" * 2049},
        {"card_etag": "x" * 513},
        {"paths": {"ping": {"result": "ok"}}},
        {"paths": {"/" + "x" * 512: {"result": "ok"}}},
        {"paths": {f"/{number}": {"result": "ok"} for number in range(9)}},
        {"paths": {"/ping": "ok"}},
    ],
)
def test_values_out_of_bounds_are_refused(members: dict[str, Any]) -> None:
    refusal(**members)


def test_values_at_the_bounds_are_accepted() -> None:
    for code in (100, 599):
        transport = {"result": "ok", "status_code": code, "reason": "x" * 500, "latency_ms": 0}
        assert observed(transport=transport).transport == LayerResult.model_validate_json(
            json.dumps(transport)
        )


def test_half_a_surrogate_pair_in_the_json_is_refused() -> None:
    with pytest.raises(ValidationError):
        Observation.model_validate_json(wire(reported_agent_id="PLACE").replace("PLACE", "\\ud800"))


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\n", "\u202e", "\ud800"])
def test_quoted_text_of_a_peer_is_safe(char: str) -> None:
    assert LayerResult(result=ResultClass.HTTP_ERROR, reason=f"5{char}0").reason == "5\ufffd0"


def test_unicode_letters_and_emoji_are_kept() -> None:
    assert observed(reported_agent_id="агент 代理 🤖").reported_agent_id == "агент 代理 🤖"


def test_an_observation_cannot_be_changed() -> None:
    observation = observed()
    with pytest.raises(ValidationError):
        observation.agent_id = "b"


def test_observation_keeps_the_reported_document() -> None:
    document = observed(
        readiness="ok",
        document={
            "status": "degraded", "timestamp": "2026-07-01T14:00:00+02:00", "age_s": -2.5, "max_age_s": 60,
            "response_ratio": 0.9, "sample_count": 12, "latency_p99_ms": 250.5,
        },
    ).document  # fmt: skip
    assert document is not None
    assert document.status is HealthStatus.DEGRADED
    assert document.timestamp == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert (document.age_s, document.max_age_s) == (-2.5, 60)
    assert (document.response_ratio, document.sample_count, document.latency_p99_ms) == (0.9, 12, 250.5)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("layer", LAYERS)
def test_discounting_changes_only_failures(layer: str, result: str) -> None:
    observation = observed(**{layer: result})
    changed = observation.discounted(InconclusiveReason.NO_WITNESS, "no witness answered")
    assert not changed.is_measured_failure
    assert changed.is_liveness_signal == observation.is_liveness_signal
    if observation.is_measured_failure:
        found = getattr(changed, layer)
        assert found.result is ResultClass.NOT_MEASURED
        # Existing results stay readable.
        assert result in found.reason
        assert changed.inconclusive_reason is InconclusiveReason.NO_WITNESS
    else:
        assert changed is observation
    assert observed(**json.loads(changed.model_dump_json(exclude_none=True))) == changed


def test_a_layer_that_does_not_count_keeps_its_class_and_reason_as_text() -> None:
    observation = observed(discovery={"result": "timeout", "reason": "closed"})
    changed = observation.discounted(InconclusiveReason.NO_WITNESS, "no witness")
    assert changed.discovery == LayerResult(
        result=ResultClass.NOT_MEASURED, reason="no witness (timeout: closed)"
    )


def test_failed_assertions_next_to_a_discounted_failure_do_not_count() -> None:
    results = tuple(asserted(result) for result in ("ok", "assertion_failed", "not_measured"))
    observation = observed(discovery="timeout").model_copy(update={"assertions": results})
    changed = observation.discounted(InconclusiveReason.NO_WITNESS, "no witness")
    assert [each.result for each in changed.assertions or ()] == ["ok", "not_measured", "not_measured"]


def test_failed_assertions_about_an_answering_target_can_be_discounted() -> None:
    results = tuple(asserted(result) for result in ("ok", "assertion_failed"))
    observation = observed(transport="ok").model_copy(update={"assertions": results})
    changed = observation.discounted(InconclusiveReason.NO_WITNESS, "no witness")
    assert [each.result for each in changed.assertions or ()] == ["ok", "not_measured"]
    assert (changed.transport, changed.inconclusive_reason) == (observation.transport, None)
    assert changed.discounted(InconclusiveReason.NO_WITNESS, "no witness") is changed


@pytest.mark.parametrize(
    ("result", "check", "of", "is_wrong"),
    [
        ("assertion_failed", "status", "/status", True),
        ("assertion_failed", "text_contains", "card", True),
        ("ok", "status", "/status", False),
        ("not_measured", "status", "/status", False),
        # A limit makes the agent degraded.
        ("assertion_failed", "latency_below", "/status", False),
        # These are not sent a second time.
        ("assertion_failed", "text_contains", "message", False),
        ("assertion_failed", "text_contains", "tool", False),
    ],
)
def test_failed_assertion_that_a_second_request_can_show_is_a_wrong_answer(
    result: str, check: str, of: str, *, is_wrong: bool
) -> None:
    observation = observed(transport="ok").model_copy(update={"assertions": (asserted(result, check, of),)})
    assert observation.has_wrong_answer is is_wrong


@pytest.mark.parametrize("result", RESULTS)
def test_discounting_changes_only_the_given_layers(result: str) -> None:
    observation = observed(discovery="timeout", transport=result)
    named = observation.layers_with(ResultClass.TIMEOUT)
    assert named == (("discovery", "transport") if result == "timeout" else ("discovery",))
    changed = observation.discounted(InconclusiveReason.PROBER_SLOW, "slow", layers=named)
    assert changed.transport == (observation.transport if result != "timeout" else changed.discovery)


def test_answered_layer_stays_answered() -> None:
    changed = observed(discovery="ok", transport="timeout", readiness="ok").discounted(
        InconclusiveReason.NO_WITNESS, "x" * 1000
    )
    assert (changed.discovery, changed.readiness) == (
        LayerResult(result=ResultClass.OK),
        LayerResult(result=ResultClass.OK),
    )
    assert changed.transport == LayerResult(result=ResultClass.NOT_MEASURED, reason="x" * 500)
    assert changed.document is not None
    assert changed.inconclusive_reason is None


@pytest.mark.parametrize("result", RESULTS)
def test_exactly_the_inconclusive_classes_have_an_inconclusive_reason(result: str) -> None:
    assert (reason_of_inconclusive(ResultClass(result)) is not None) == (result in INCONCLUSIVE)


def test_observation_without_a_probe_has_the_inconclusive_reason() -> None:
    observation = not_measured(
        datetime(2026, 7, 1, tzinfo=UTC),
        InconclusiveReason.NOT_PROBED,
        "stopped",
        target_url="https://a.example/",
    )
    assert observation.inconclusive_reason is InconclusiveReason.NOT_PROBED
    assert observation.result is ResultClass.NOT_MEASURED
    assert not observation.is_liveness_signal
    assert not observation.is_measured_failure
    assert observation.discovery is not None
    assert observation.discovery.reason == "stopped"
