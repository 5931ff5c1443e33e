"""Texts of an observation that an answer of the peer may be a part of: they are searched for secrets."""

from lifesign.domain.observation.results import Observation


def peer_texts(observation: Observation) -> list[str]:
    """Return all texts in an observation that may quote the target.

    The JSON form of the whole takes several times as long to write and to search.
    """
    layers = (
        observation.discovery,
        observation.transport,
        observation.readiness,
        observation.message,
        observation.tools,
    )
    own = (
        observation.agent_id,
        observation.target_url,
        observation.reported_agent_id,
        observation.card_etag,
        observation.network_class,
        observation.address,
    )
    texts = [layer.reason for layer in layers if layer is not None]
    texts += [text for text in own if text is not None]
    if observation.paths is not None or observation.assertions is not None or observation.login is not None:
        texts.append(observation.model_dump_json(include={"paths", "assertions", "login"}))
    return texts
