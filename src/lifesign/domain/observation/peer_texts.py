"""Texts of an observation that an answer of the peer may be a part of: they are searched for secrets."""

from lifesign.domain.observation.results import Observation


def peer_texts(observation: Observation) -> list[str]:
    """Return all texts of an observation but names of classes, times and digests, which are the prober's own.

    The JSON form of the whole takes several times as long to write and to search.
    """
    seen = observation
    layers = (seen.discovery, seen.transport, seen.readiness, seen.message, seen.tools)
    own = (
        seen.agent_id,
        seen.target_url,
        seen.reported_agent_id,
        seen.card_etag,
        seen.network_class,
        seen.address,
    )
    texts = [layer.reason for layer in layers if layer is not None]
    texts += [text for text in own if text is not None]
    if seen.paths is not None or seen.assertions is not None or seen.login is not None:
        texts.append(seen.model_dump_json(include={"paths", "assertions", "login"}))
    return texts
