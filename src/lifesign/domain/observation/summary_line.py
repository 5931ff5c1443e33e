"""Summary of a probe in one line for people.

A result class says how a probe ended. For a living target the summary adds its liveness signals: a card alone
does not prove that an agent works behind it. For other targets it adds what was found instead of an agent. An
MCP server has no card: the kind of the target decides the words.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lifesign.domain.observation.result_sums import Layer
from lifesign.domain.observation.results import LayerResult, ResultClass, decisive
from lifesign.domain.targets.target import TargetKind

LAYER_WORDS: Final[Mapping[str, str]] = MappingProxyType({
    Layer.OVERALL: "as a whole",
    Layer.DISCOVERY: "card",
    Layer.TRANSPORT: "interface",
    Layer.READINESS: "health document",
    Layer.MESSAGE: "message",
})  # fmt: skip
"""Names of layers for people: the requested thing. Programs read the layer's own name."""
_SERVER_LAYER_WORDS: Final[Mapping[str, str]] = MappingProxyType({
    **LAYER_WORDS,
    Layer.DISCOVERY: "server",
    Layer.TRANSPORT: "endpoint",
    Layer.MESSAGE: "tool call",
})  # fmt: skip
CARD: Final = "a card"
CARD_ONLY: Final = "a card only"
# Results that are absent here are no liveness signals (`Observation.is_liveness_signal`).
_SIGNS: Final[Mapping[tuple[Layer, ResultClass], str]] = MappingProxyType({
    (Layer.DISCOVERY, ResultClass.OK): CARD,
    (Layer.TRANSPORT, ResultClass.OK): "an interface that answers",
    (Layer.TRANSPORT, ResultClass.GATED): "an interface that requires credentials or payment",
    (Layer.TRANSPORT, ResultClass.CREDENTIALS_REJECTED): "an interface that rejects the prober's credential",
    (Layer.TRANSPORT, ResultClass.TOKEN_ERROR): "an interface behind a login, without a token",
    (Layer.READINESS, ResultClass.OK): "a health document",
    (Layer.MESSAGE, ResultClass.OK): "an answer to a message",
    (Layer.MESSAGE, ResultClass.GATED): "a message that requires credentials or payment",
    (Layer.MESSAGE, ResultClass.CREDENTIALS_REJECTED): "a message whose credential is rejected",
    (Layer.MESSAGE, ResultClass.TOKEN_ERROR): "a message behind a login, without a token",
})  # fmt: skip

_SERVER_SIGNS: Final[Mapping[tuple[Layer, ResultClass], str]] = MappingProxyType({
    (Layer.DISCOVERY, ResultClass.OK): "an MCP server",
    (Layer.TRANSPORT, ResultClass.OK): "an endpoint that answers",
    (Layer.TRANSPORT, ResultClass.GATED): "an endpoint that requires credentials or payment",
    (Layer.TRANSPORT, ResultClass.CREDENTIALS_REJECTED): "an endpoint that rejects the prober's credential",
    (Layer.TRANSPORT, ResultClass.TOKEN_ERROR): "an endpoint behind a login, without a token",
    (Layer.READINESS, ResultClass.OK): "a health document",
    (Layer.MESSAGE, ResultClass.OK): "an answer to a tool call",
    (Layer.MESSAGE, ResultClass.GATED): "a tool call that requires credentials or payment",
    (Layer.MESSAGE, ResultClass.CREDENTIALS_REJECTED): "a tool call whose credential is rejected",
    (Layer.MESSAGE, ResultClass.TOKEN_ERROR): "a tool call behind a login, without a token",
})  # fmt: skip


def layer_words(kind: TargetKind | None) -> Mapping[str, str]:
    """Return the names of layers for people, for this kind of target (None: A2A agent)."""
    return _SERVER_LAYER_WORDS if kind is TargetKind.MCP else LAYER_WORDS


def probe_summary(layers: Sequence[tuple[Layer, LayerResult]], kind: TargetKind | None = None) -> str:
    """Return one line for people about a probe with these layers, in the order of their requests.

    Empty if no layer has a reason: then the result class is sufficient.
    """
    if signals := liveness_signals(layers, kind):
        return "; ".join(filter(None, (signals, _withheld_credential(layers))))
    last = decisive(layers)
    return "" if last is None else last.reason


def liveness_signals(layers: Sequence[tuple[Layer, LayerResult]], kind: TargetKind | None = None) -> str:
    """Return in words which liveness signals a probe found, and how the interface failed; empty without."""
    signals = signs_in(((layer, result.result) for layer, result in layers), kind)
    interface = next((result for layer, result in layers if layer is Layer.TRANSPORT), None)
    if signals == CARD_ONLY and interface is None:
        return f"{signals}: its interface was not probed"
    if signals and interface is not None and not interface.has_answered:
        return f"{signals}; its {layer_words(kind)[Layer.TRANSPORT]}: {_ended(interface)}"
    return signals


def combine_with_card(
    layers: Sequence[tuple[Layer, LayerResult]], card: ResultClass | None
) -> Sequence[tuple[Layer, LayerResult]]:
    """Return the results of a probe, with the known result of a card (None: no card) that it did not request.

    A card is read once a day, and is valid until it is read again. The other layers are probed each time:
    without a result their state is unknown. For a target without liveness signals only the last results
    count.
    """
    has_card = card is ResultClass.OK and all(layer is not Layer.DISCOVERY for layer, _ in layers)
    if not has_card or not liveness_signals(layers):
        return layers
    return [(Layer.DISCOVERY, LayerResult(result=ResultClass.OK)), *layers]


def has_lost_interface(layers: Sequence[tuple[Layer, LayerResult]]) -> bool:
    """Return whether an agent is alive but its card failed, so that its interface could not be probed."""
    results = dict(layers)
    card, interface = results.get(Layer.DISCOVERY), results.get(Layer.TRANSPORT)
    is_nameless = card is not None and card.has_failed and (interface is None or not interface.is_measured)
    return is_nameless and bool(liveness_signals(layers))


def signs_in(results: Iterable[tuple[Layer, ResultClass]], kind: TargetKind | None = None) -> str:
    """Return in words which liveness signals these results of layers contain; empty without."""
    signs = _SERVER_SIGNS if kind is TargetKind.MCP else _SIGNS
    text = ", ".join(sign for each in results if (sign := signs.get(each)) is not None)
    return CARD_ONLY if text == CARD else text


def _withheld_credential(layers: Iterable[tuple[Layer, LayerResult]]) -> str:
    """Return the reason of the first login to which the prober did not send its credential; empty without."""
    reasons = (result.reason for _, result in layers if result.result is ResultClass.GATED)
    # Of all reasons of this result, only that of such a login names a credential.
    return next((reason for reason in reasons if " credential " in reason), "")


def _ended(layer: LayerResult) -> str:
    return f"{layer.result} ({layer.reason})" if layer.reason else layer.result.value
