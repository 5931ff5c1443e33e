import inspect
import re
import traceback
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lifesign import AgentHealth, AgentHealthMiddleware
from lifesign.domain.health.outcome import CountingProfile
from lifesign.errors import InvalidValue, LifesignError
from lifesign.middleware.settings import MiddlewareSettings, moment_now

MOMENT = datetime(2025, 11, 20, tzinfo=UTC)
TOKEN = "tok3n-that-nobody-may-see"

RECORDER_DEFAULTS: dict[str, Any] = {
    "window_seconds": 86_400,
    "refresh_seconds": 60,
    "baseline_p99_ms": None,
    "counting": "interactions",
    "state_dir": None,
    "model_changed_at": None,
    "capabilities_updated_at": None,
}
MIDDLEWARE_DEFAULTS: dict[str, Any] = {
    "path": "/.well-known/agent-health",
    "timeout_seconds": 30,
    "include": None,
    "exclude": (),
    "detail": "full",
    "detail_token": None,
    "metrics_path": None,
    "max_inspected_bytes": 1_048_576,
    "stream_latency": "first_byte",
}

TAKEN: dict[str, list[Any]] = {
    "agent_id": ["a", "x" * 2048, "https://agent.test/card.json", "Ärztin 7"],
    "window_seconds": [300, 300.0, 604_800, 86_400.5],
    "refresh_seconds": [1, 1.0, 3600, 0.5 + 1],
    "baseline_p99_ms": [None, 0.001, 3_600_000],
    "counting": ["literal", "interactions", "server_faults", *CountingProfile],
    "state_dir": [None],
    "model_changed_at": [None, MOMENT, MOMENT.astimezone(timezone(timedelta(hours=5))), lambda: None],
    "capabilities_updated_at": [None, MOMENT, lambda: MOMENT],
    "path": ["/x", "/.well-known/agent-health", "/" + "x" * 1023, "/a/b"],
    "timeout_seconds": [0.001, 30, 86_400],
    "include": [None, ["/a"], ("/a", "/b/*")],
    "exclude": [[], (), ["/metrics"]],
    "detail": ["full", "coarse"],
    "max_inspected_bytes": [0, 1, 16_777_216],
    "metrics_path": [None, "/metrics", "/.well-known/numbers"],
    "stream_latency": ["first_byte", "last_byte"],
}
REFUSED: dict[str, list[Any]] = {
    "agent_id": ["", "x" * 2049, "a\nb", "a\x00", "\ud800", None, 7],
    "window_seconds": [299, 299.999, 604_801, 604_800.1, float("nan"), float("inf"), "300", None, 0, -300],
    "refresh_seconds": [0, 0.999, 3600.1, 3601, float("nan"), float("-inf"), "60", None],
    "baseline_p99_ms": [0, -1, 3_600_000.1, float("nan"), float("inf"), "700"],
    "counting": ["", "Literal", "all", None, 1],
    "state_dir": [7, [], b"\xff"],
    "model_changed_at": [datetime(2025, 11, 20), "yesterday", []],  # noqa: DTZ001 - the fault
    "capabilities_updated_at": [datetime(2025, 11, 20), "yesterday"],  # noqa: DTZ001 - the fault
    "path": ["", "/", "x", "health", "/a?b", "/a#b", "/*", "/a b", "/a\n", "/" + "x" * 1024, None, 7],
    "timeout_seconds": [0, -1, 86_400.1, float("nan"), float("inf"), "30", None],
    "include": [[], "/a", [""], [7], 7],
    "exclude": ["/metrics", [""], [None], None, 7],
    "detail": ["", "Full", "none", None],
    "max_inspected_bytes": [-1, 16_777_217, 1.0, 1.5, "1", None, True],
    "metrics_path": ["", "/", "x", "/a?b", "/a b", "/" + "x" * 1024, "/.well-known/agent-health", 7],
    "stream_latency": ["", "both", None],
}
# Contents of a refusal that an operator needs.
EXPECTED = {
    "agent_id": ["1", "2048"],
    "window_seconds": ["300", "604800", "seconds"],
    "refresh_seconds": ["1", "3600", "seconds"],
    "baseline_p99_ms": ["0", "3600000", "milliseconds", "None"],
    "counting": ["literal", "interactions", "server_faults"],
    "state_dir": ["directory", "None"],
    "model_changed_at": ["time zone", "None"],
    "capabilities_updated_at": ["time zone", "None"],
    "path": ["/.well-known/agent-health"],
    "timeout_seconds": ["0", "86400", "seconds"],
    "include": ["patterns", "None"],
    "exclude": ["patterns"],
    "detail": ["full", "coarse"],
    "max_inspected_bytes": ["0", "16777216", "bytes"],
    "metrics_path": ["/metrics", "None", "detail_token", "metrics]"],
    "stream_latency": ["first_byte", "last_byte"],
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    pass


def wrapped(**given: Any) -> AgentHealthMiddleware:
    return AgentHealthMiddleware(app, **{"agent_id": "agent", **given})


def recorder(**given: Any) -> AgentHealth:
    return AgentHealth(**{"agent_id": "agent", **given})


def defaults(of: type) -> dict[str, Any]:
    parameters = inspect.signature(of).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def cases(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in table.items() for value in values]


def test_every_setting_has_its_default() -> None:
    assert {"agent_id": inspect.Parameter.empty, **RECORDER_DEFAULTS, "clock": None} == defaults(AgentHealth)
    assert defaults(AgentHealth) | MIDDLEWARE_DEFAULTS == defaults(AgentHealthMiddleware)
    # Rows of this table that another test relies on.
    assert set(TAKEN) | {"detail_token", "clock"} == set(defaults(AgentHealthMiddleware))
    assert set(REFUSED) == set(TAKEN) == set(EXPECTED)


@pytest.mark.parametrize(("name", "value"), cases(TAKEN))
def test_value_at_the_limit_is_accepted(name: str, value: Any) -> None:
    middleware = wrapped(**{name: value})
    if name not in MIDDLEWARE_DEFAULTS:
        recorder(**{name: value})
        taken = getattr(middleware.health.settings, name)
        assert taken == value


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_value_out_of_range_is_refused_with_the_range(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        wrapped(**{name: value})
    error = caught.value
    assert error.name == name
    assert error.given is value
    got = "" if value is None else f"; got {value!r}"
    assert str(error) == f"{name}: expected {error.expected}{got}"
    assert all(fact in error.expected for fact in EXPECTED[name])
    assert isinstance(error, LifesignError)
    assert isinstance(error, ValueError)
    if name not in MIDDLEWARE_DEFAULTS:
        with pytest.raises(InvalidValue, match=re.escape(name)):
            recorder(**{name: value})


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="window_minutes"):
        wrapped(window_minutes=5)
    with pytest.raises(TypeError, match="timeout_seconds"):
        recorder(timeout_seconds=30)
    with pytest.raises(TypeError, match="agent_id"):
        AgentHealthMiddleware(app)  # type: ignore[call-arg]


def test_settings_are_not_taken_by_position() -> None:
    with pytest.raises(TypeError):
        AgentHealthMiddleware(app, "agent")  # type: ignore[call-arg]


# The token.


@pytest.mark.parametrize("token", ["x" * 16, "x" * 1024, TOKEN, "".join(map(chr, range(33, 127)))])
def test_token_of_visible_ascii_is_accepted(token: str) -> None:
    wrapped(detail="coarse", detail_token=token)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x" * 15,
        "x" * 1025,
        "with spaces " + TOKEN,
        TOKEN + "é",
        TOKEN + "\n",
        TOKEN.encode() + b"\xff",
        7,
    ],
)
def test_short_or_unprintable_token_is_refused_without_quoting_it(token: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        wrapped(detail="coarse", detail_token=token)
    message = "".join(traceback.format_exception(caught.value))
    assert caught.value.name == "detail_token"
    assert all(fact in caught.value.expected for fact in ("16", "1024", "ASCII", "coarse"))
    assert caught.value.given == "(not shown)"
    assert TOKEN not in message
    if isinstance(token, str) and token:
        assert token not in message


def test_token_without_coarse_detail_is_refused() -> None:
    with pytest.raises(InvalidValue, match="detail_token") as caught:
        wrapped(detail_token=TOKEN)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_error_about_another_setting_does_not_quote_the_token() -> None:
    with pytest.raises(InvalidValue, match="timeout_seconds") as caught:
        wrapped(detail="coarse", detail_token=TOKEN, timeout_seconds=0)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_representations_of_settings_and_middleware_hide_the_token() -> None:
    settings = MiddlewareSettings.checked(**MIDDLEWARE_DEFAULTS | {"detail": "coarse", "detail_token": TOKEN})
    middleware = wrapped(detail="coarse", detail_token=TOKEN)
    for holder in (settings, middleware, middleware.health, middleware.health.settings):
        assert TOKEN not in repr(holder) + str(holder)
    assert TOKEN not in settings.model_dump_json()


def test_settings_do_not_change_once_they_are_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        wrapped().health.settings.window_seconds = 1


# The directory and the moments.


def test_state_dir_may_be_text_or_path_and_is_created(tmp_path: Path) -> None:
    for given in (str(tmp_path / "text" / "deep"), tmp_path / "path"):
        wrapped(state_dir=given)
        assert Path(given).is_dir()


def test_state_dir_that_cannot_be_created_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for given in (file, file / "below"):
        with pytest.raises(InvalidValue, match="state_dir"):
            wrapped(state_dir=given)


def test_given_or_returned_time_is_converted_to_utc() -> None:
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=5)))
    for moment in (MOMENT, elsewhere, lambda: elsewhere):
        found = moment_now(moment)
        assert found == MOMENT
        assert found.tzinfo is UTC
    assert moment_now(None) is None
    assert moment_now(lambda: None) is None


def test_returned_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidValue, match="time zone"):
        moment_now(lambda: datetime(2025, 11, 20))  # noqa: DTZ001 - the fault


# The docstrings are the reference of the settings.

NAMED_SO: dict[Any, str] = {(): "()"}


def entry(of: type, name: str) -> str:
    """Return the docstring of one setting."""
    found = re.search(
        rf"^{name}: (.*?)(?=^\w+: |\Z)", inspect.cleandoc(of.__doc__ or ""), re.MULTILINE | re.DOTALL
    )
    assert found, f"{of.__name__} does not describe {name}"
    return " ".join(found[1].split())


@pytest.mark.parametrize("name", RECORDER_DEFAULTS)
def test_the_recorders_docstring_names_every_setting_with_its_default(name: str) -> None:
    result = entry(AgentHealth, name)
    if name != "capabilities_updated_at":
        # "likewise" refers to the row above.
        default = RECORDER_DEFAULTS[name]
        assert default is None or NAMED_SO.get(default, str(default)) in result
        assert default is not None or "None" in result
    assert f"`{name}`" in inspect.cleandoc(AgentHealthMiddleware.__doc__ or "")


@pytest.mark.parametrize("name", MIDDLEWARE_DEFAULTS)
def test_the_middlewares_docstring_names_every_setting_with_its_default(name: str) -> None:
    result = entry(AgentHealthMiddleware, name)
    default = MIDDLEWARE_DEFAULTS[name]
    assert NAMED_SO.get(default, str(default)) in result


@pytest.mark.parametrize("name", ["agent_id", "clock"])
def test_docstrings_describe_agent_id_and_clock(name: str) -> None:
    assert entry(AgentHealth, name)
    assert f"`{name}`" in inspect.cleandoc(AgentHealthMiddleware.__doc__ or "")
