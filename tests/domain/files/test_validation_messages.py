import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from lifesign.domain.events.event_type import EventType
from lifesign.domain.files.validation_messages import expectation, invalid_setting
from lifesign.domain.models.agents import CommandRequest, HeartbeatConfig, Registration
from lifesign.domain.models.tasks import RunWrite


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (
            Registration,
            {"agent_id": "a b"},
            "agent_id: expected 1 to 128 letters, digits and . _ ~ : -; got 'a b'",
        ),
        (Registration, {"name": ""}, "name: expected at least 1 character; got ''"),
        (Registration, {"drain_timeout_seconds": 0}, "drain_timeout_seconds: expected at least 1; got 0"),
        (Registration, {"monitoring": "probe"}, "it: expected a card_url, which monitoring by probes needs"),
        (Registration, {"metadata": {"a": "x" * 20_000}}, "metadata: expected at most 16384 bytes"),
        (Registration, {"colour": "red"}, "colour: expected no member of this name; got 'red'"),
        (
            RunWrite,
            {"run_id": f"run_{26 * '0'}", "fencing_token": 10**16},
            "fencing_token: expected at most 9007199254740991; got 10000000000000000",
        ),
        (CommandRequest, {}, "command: expected a value"),
        (CommandRequest, {"command": "stop"}, "command: expected one of 'drain'; got 'stop'"),
        (
            HeartbeatConfig,
            {"interval_seconds": 60},
            "it: expected unhealthy_after_seconds to be at least 2 x interval_seconds",
        ),
    ],
)  # fmt: skip
def test_validation_error_has_the_expected_text(
    model: type[BaseModel], given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(given)
    assert str(invalid_setting(refused.value, "it")) == message


def test_invalid_value_is_shown_shortened() -> None:
    with pytest.raises(ValidationError) as refused:
        Registration.model_validate({"agent_id": "x" * 5_000})
    assert len(str(invalid_setting(refused.value, "it"))) < 200


@pytest.mark.parametrize(
    ("given", "named", "others"),
    [
        ("agent.lifecylce", {"agent.lifecycle"}, {"lease.acquired"}),
        ("lease.aquired", {"lease.acquired"}, {"agent.lifecycle"}),
        ("?", {"agent.lifecycle", "openapi.json"}, {"lease.acquired"}),
    ],
)
def test_long_list_of_allowed_values_is_cut_to_the_nearest(
    given: str, named: set[str], others: set[str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(EventType).validate_python(given)
    words = set(expectation(refused.value.errors()[0]).replace(",", " ").split())
    assert named <= words
    assert not others & words
    assert str(len(EventType)) in words
