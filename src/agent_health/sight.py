"""What did a probe see of a target, in one line for people?

A result class says how a probe ended. Of who lives this says by what: a card alone is no proof that anybody
works behind it. Of the others it says what was found where an agent should be.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from agent_health.observation import LayerResult, ResultClass, decisive
from agent_health.result_sums import Layer

CARD: Final = "a card"
# What is absent here is no sign of life (`Observation.is_sign_of_life`).
_SIGNS: Final[Mapping[tuple[Layer, ResultClass], str]] = MappingProxyType({
    (Layer.DISCOVERY, ResultClass.OK): CARD,
    (Layer.TRANSPORT, ResultClass.OK): "an interface that answers",
    (Layer.TRANSPORT, ResultClass.GATED): "an interface that asks for credentials or money",
    (Layer.READINESS, ResultClass.OK): "a health document",
    (Layer.MESSAGE, ResultClass.OK): "an answer to a message",
    (Layer.MESSAGE, ResultClass.GATED): "a message that takes credentials or money",
})  # fmt: skip


def sight(layers: Sequence[tuple[Layer, LayerResult]]) -> str:
    """Return what the layers of one probe came to, which are in the order in which they were asked.

    Empty where no layer gives a reason: the result class says it all.
    """
    if told := signs_of_life(layers):
        return told
    last = decisive([said for _, said in layers])
    return "" if last is None else last.reason


def signs_of_life(layers: Sequence[tuple[Layer, LayerResult]]) -> str:
    """Return by what an agent shows that it lives, and what became of its interface; empty: by nothing."""
    signs = [sign for layer, said in layers if (sign := _SIGNS.get((layer, said.result))) is not None]
    if not signs:
        return ""
    told = f"{CARD} only" if signs == [CARD] else ", ".join(signs)
    interface = next((said for layer, said in layers if layer is Layer.TRANSPORT), None)
    if interface is None and signs == [CARD]:
        return f"{told}: its interface was not asked"
    if interface is not None and not interface.has_answered:
        return f"{told}; its interface: {_ended(interface)}"
    return told


def _ended(layer: LayerResult) -> str:
    return f"{layer.result} ({layer.reason})" if layer.reason else layer.result.value
