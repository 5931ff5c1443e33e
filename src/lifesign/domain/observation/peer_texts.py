"""Texts of an observation that an answer of the peer may be a part of: they are searched for secrets.

The prober's own names, URLs and addresses are not among them. A token endpoint may issue a word of them as a
token, and the observation would be invalid without this word.
"""

from collections.abc import Callable
from typing import Final

from lifesign.domain.observation.assertion import AssertionResult
from lifesign.domain.observation.login import Login
from lifesign.domain.observation.results import LayerResult, Observation

_LAYERS: Final = ("discovery", "transport", "readiness", "message", "tools")


def peer_texts(observation: Observation) -> list[str]:
    """Return all texts in an observation that may quote the target.

    The JSON form of the whole takes several times as long to write and to search.
    """
    layers = (getattr(observation, name) for name in _LAYERS)
    texts = [layer.reason for layer in layers if layer is not None]
    texts += [text for text in (observation.reported_agent_id, observation.card_etag) if text is not None]
    if observation.paths is not None or observation.assertions is not None or observation.login is not None:
        texts.append(observation.model_dump_json(include={"paths", "assertions", "login"}))
    return texts


def with_peer_texts(observation: Observation, changed: Callable[[str], str]) -> Observation:
    """Return an observation with each text that may quote the target replaced by what `changed` returns."""

    def optional(text: str | None) -> str | None:
        return None if text is None else changed(text)

    def layer(given: LayerResult | None) -> LayerResult | None:
        return None if given is None else given.model_copy(update={"reason": changed(given.reason)})

    def assertion(given: AssertionResult) -> AssertionResult:
        texts = {name: optional(getattr(given, name)) for name in ("expected", "actual", "reason")}
        return given.model_copy(update=texts)

    paths, assertions, login = observation.paths, observation.assertions, observation.login
    return observation.model_copy(
        update={
            **{name: layer(getattr(observation, name)) for name in _LAYERS},
            "reported_agent_id": optional(observation.reported_agent_id),
            "card_etag": optional(observation.card_etag),
            "paths": None if paths is None else {path: layer(answer) for path, answer in paths.items()},
            "assertions": None if assertions is None else tuple(map(assertion, assertions)),
            "login": None if login is None else _login_with(login, changed),
        }
    )


def _login_with(login: Login, changed: Callable[[str], str]) -> Login:
    metadata = login.metadata
    if metadata is not None:
        metadata = metadata.model_copy(
            update={
                "reason": changed(metadata.reason),
                "authorization_servers": tuple(map(changed, metadata.authorization_servers)),
                "scopes": tuple(map(changed, metadata.scopes)),
            }
        )
    return login.model_copy(
        update={
            "origin": None if login.origin is None else changed(login.origin),
            "schemes": tuple(map(changed, login.schemes)),
            "card_schemes": tuple(map(changed, login.card_schemes)),
            "metadata": metadata,
        }
    )
