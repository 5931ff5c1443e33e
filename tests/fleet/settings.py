"""Settings of the programs under test, with every duration divided by one factor."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import typer
import yaml
from tests.fleet.hosts import CANARIES, CLASS, DOMAIN, NAME_SERVER, PORT, url_of
from tests.fleet.kinds import CARD_PATH, KINDS
from tests.fleet.login import CLIENT, SECRET_VARIABLE, TOKEN_PATH
from tests.fleet.script import DEAD_AFTER_S, INTERVAL_S, UNHEALTHY_AFTER_S, Agent, Script

from lifesign.cli import application
from lifesign.domain.models.agents import HeartbeatConfig
from lifesign.registry.settings import RegistrySettings

DEFAULTS = RegistrySettings()
LOGIN_HOST = f"login.{DOMAIN}"

HEARTBEAT_INTERVAL_S, HEARTBEAT_UNHEALTHY_S, HEARTBEAT_DEAD_S = 30.0, 90.0, 300.0


MAX_REQUEST_FACTOR = 5.0
"""Deadlines of single requests are divided by this at most: a busy machine must not look like a fault."""


def definition(script: Script, factor: float) -> str:
    """Return the probe definition of a script's probers, as YAML."""
    of_requests = min(factor, MAX_REQUEST_FACTOR)
    settings: dict[str, Any] = {
        "name": "fleet",
        "contact": "mailto:fleet@agent.example",
        # The agents register themselves; a definition needs a target of its own.
        "targets": [f"http://nobody.{DOMAIN}:{PORT}", *filter(None, map(_target, script.agents))],
        "credentials": [_credential(agent) for agent in script.agents if KINDS[agent.kind].has_login],
        "networks": {"allow": [CLASS]},
        "resolver": {"servers": [f"{NAME_SERVER}:53"]},
        "cadence": {
            "allow_fast_cadence": True,
            "interval_seconds": INTERVAL_S / factor,
            "confirm_after_seconds": 30 / factor,
            "card_every_seconds": 86_400 / factor,
            "max_backoff_seconds": 86_400 / factor,
        },
        "timeouts": {
            "dns_seconds": 5 / of_requests,
            "connect_seconds": 5 / of_requests,
            "tls_seconds": 5 / of_requests,
            "first_byte_seconds": 10 / of_requests,
            "total_seconds": 20 / of_requests,
        },
        "self_check": {"max_lag_seconds": 1 / of_requests, "max_standstill_seconds": 2 / of_requests},
        "witnesses": {
            "round_seconds": 30 / factor,
            "answer_seconds": 3 / of_requests,
            "next_answer_seconds": 5 / factor,
            "second_request_seconds": 60 / factor,
            "max_clock_offset_seconds": 30 / factor,
        },
        "results": {"flush_seconds": 5 / factor, "lease_seconds": max(5.0, 300 / factor)},
    }
    if script.has_canaries:
        urls = [f"http://canary-{number}.{DOMAIN}:{PORT}/" for number in range(len(CANARIES))]
        settings["canaries"] = {CLASS: urls}
    return yaml.safe_dump(settings)


def _target(agent: Agent) -> dict[str, Any] | None:
    """Return the settings of an agent about whose answers assertions are made."""
    kind = KINDS[agent.kind]
    if not kind.checks:
        return None
    asked = {"ask": {"message": {"text": "Reply with the word OK."}}} if kind.sends_message else {}
    checks = [dict(check) for check in kind.checks]
    return {"url": f"{url_of(agent.number)}{CARD_PATH}", "assertions": checks, **asked}


def _credential(agent: Agent) -> dict[str, Any]:
    """Return the credential of an agent behind a login. All share one client, and so its tokens."""
    client = {
        "token_url": f"http://{LOGIN_HOST}:{PORT}{TOKEN_PATH}",
        "client_id": CLIENT,
        "client_secret": {"env": SECRET_VARIABLE},
    }
    # The definition does not name the agents that register themselves.
    return {
        "name": agent.agent_id,
        "origin": url_of(agent.number),
        "for_all_targets": True,
        "oauth2": client,
    }


def server_options(factor: float) -> list[str]:
    """Return the options of `serve`."""
    return ["--sweep-interval", f"{max(0.1, 0.5 * 30 / factor):g}s"]


@cache
def variables() -> Mapping[str, str]:
    """Return the variable of each setting of `serve`, by the setting's name in Python."""
    commands: Any = typer.main.get_command(application._application)
    serve = commands.commands["serve"]
    return {parameter.name: parameter.envvar for parameter in serve.params if parameter.envvar}


def server_environment(factor: float) -> Mapping[str, str]:
    """Return the thresholds and rhythms of `serve`, as environment variables; none is below its least."""
    seconds = {
        name: getattr(DEFAULTS, name)
        for name in (
            "mass_exit_cadence_seconds",
            "mass_exit_max_suspension_seconds",
            "mass_exit_proven_seconds",
            "mass_silence_expected_seconds",
            "mass_silence_together_seconds",
            "witness_seconds",
            "clock_offset_seconds",
            "evidence_lost_seconds",
        )
    }
    scaled = {name: max(1.0, value / factor) for name, value in seconds.items()}
    scaled["watch_seconds"] = max(0.1, DEFAULTS.watch_seconds / factor)
    return {variables()[name]: f"{value:.6f}s" for name, value in scaled.items()}


def probe_thresholds(factor: float) -> HeartbeatConfig:
    """Return the thresholds of an agent that is monitored by probes."""
    return HeartbeatConfig(
        interval_seconds=round(INTERVAL_S / factor),
        unhealthy_after_seconds=round(UNHEALTHY_AFTER_S / factor),
        dead_after_seconds=round(DEAD_AFTER_S / factor),
    )


def heartbeat_thresholds(factor: float) -> HeartbeatConfig:
    """Return the thresholds of an agent that sends heartbeats: at least 1 s, the least that is taken."""
    scale = min(factor, HEARTBEAT_INTERVAL_S)
    return HeartbeatConfig(
        interval_seconds=round(HEARTBEAT_INTERVAL_S / scale),
        unhealthy_after_seconds=round(HEARTBEAT_UNHEALTHY_S / scale),
        dead_after_seconds=round(HEARTBEAT_DEAD_S / scale),
    )
