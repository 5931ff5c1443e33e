"""Variants of a message, and the order in which they are tried.

Three generations of A2A name the same operation differently, and encode a message differently. An agent's
card should name the accepted variants; many cards name none, or others than the agent accepts. Section
numbers without a source are those of the A2A 1.0 specification.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from lifesign.domain.a2a.interfaces import major_minor

VERSION_HEADER: Final = "A2A-Version"
"""Without it a request is of version 0.3 (3.6.2)."""
REST_BINDING: Final = "HTTP+JSON"
_REST_BASE: Final = "/v1"


@dataclass(frozen=True, slots=True)
class MessageVariant:
    """One way to send a message: protocol version and binding, which differ between agents."""

    name: str
    """The operation as this spelling calls it."""
    params: Callable[[str, str], dict[str, Any]]
    """Makes the operation's parameters of a text and an identifier."""
    version: str | None = None
    """Goes into the header `A2A-Version`, which 0.x does not have."""
    path: str = ""
    """Goes behind the interface's URL (HTTP+JSON); empty for JSON-RPC, which names the operation inside."""
    takes_tenant: bool = False
    """Whether the variant can name the tenant (4.4.6)."""

    @property
    def headers(self) -> dict[str, str]:
        """HTTP header fields that this variant needs."""
        return {} if self.version is None else {VERSION_HEADER: self.version}

    @property
    def is_rpc(self) -> bool:
        """Whether the variant is JSON-RPC."""
        return not self.path


# Without a history, an answer does not repeat the message.
_SHORT: Final = MappingProxyType({"historyLength": 0})


def _message_1_0(text: str, message_id: str) -> dict[str, Any]:
    message = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message, "configuration": {**_SHORT}}


def _message_0_3(text: str, message_id: str) -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    message = {"kind": "message", "messageId": message_id, "role": "user", "parts": parts}
    # 0.2 requires the list. Empty, it excludes no mode.
    return {"message": message, "configuration": {"acceptedOutputModes": [], **_SHORT}}


def _rest_message_0_3(text: str, message_id: str) -> dict[str, Any]:
    """The form of 0.3's protocol buffers, as the Python SDK accepts it."""
    message = {"messageId": message_id, "role": "ROLE_USER", "content": [{"text": text}]}
    return {"message": message, "configuration": {**_SHORT}}


def _message_0_1(text: str, message_id: str) -> dict[str, Any]:
    message = {"role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": message_id, "message": message, **_SHORT}


RPC_1_0: Final = MessageVariant("SendMessage", _message_1_0, version="1.0", takes_tenant=True)
RPC_0_3: Final = MessageVariant("message/send", _message_0_3)
RPC_0_1: Final = MessageVariant("tasks/send", _message_0_1)
REST_1_0: Final = MessageVariant("message:send", _message_1_0, "1.0", "/message:send", takes_tenant=True)
REST_0_3: Final = MessageVariant("v1/message:send", _rest_message_0_3, path=f"{_REST_BASE}/message:send")
REST_0_3_AS_RPC: Final = MessageVariant("v1/message:send", _message_0_3, path=f"{_REST_BASE}/message:send")
"""Variant of 0.3's JSON schema, which the JavaScript SDK accepts."""

# By the version of the card's interface, in the order of tries. An agent without a version is rarely a new
# one.
_RPC: Final[Mapping[str | None, tuple[MessageVariant, ...]]] = MappingProxyType({
    "1.0": (RPC_1_0, RPC_0_3, RPC_0_1),
    "0.3": (RPC_0_3, RPC_1_0, RPC_0_1),
    "0.2": (RPC_0_3, RPC_0_1, RPC_1_0),
    "0.1": (RPC_0_1, RPC_0_3, RPC_1_0),
    None:  (RPC_0_3, RPC_0_1, RPC_1_0),
})  # fmt: skip
_REST: Final[Mapping[str | None, tuple[MessageVariant, ...]]] = MappingProxyType({
    "1.0": (REST_1_0, REST_0_3, REST_0_3_AS_RPC),
    None:  (REST_0_3, REST_0_3_AS_RPC, REST_1_0),
})  # fmt: skip


def variants_of(binding: str | None, protocol_version: str | None) -> tuple[MessageVariant, ...]:
    """Return the variants for an interface, the most likely first.

    An interface without a binding, or with an unknown one, is treated as JSON-RPC. A version newer than all
    known ones is treated as the newest.
    """
    version = major_minor(protocol_version)
    known = _REST if binding == REST_BINDING else _RPC
    if version and version[0] in "123456789":
        version = "1.0"
    return known.get(version, known[None])


def place_of(spelling: MessageVariant, url: str, tenant: str | None = None) -> str:
    """Return the URL to which this variant sends a message, given an interface's URL."""
    if spelling.is_rpc:
        return url
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    path = spelling.path
    if path.startswith(_REST_BASE) and base.endswith(_REST_BASE):
        # Some cards name the base URL of the operations, others the root above it.
        path = path.removeprefix(_REST_BASE)
    if tenant and spelling.takes_tenant:
        path = f"/{quote(tenant, safe='')}{path}"
    return f"{base}{path}{mark}{query}"


def written(spelling: MessageVariant, text: str, message_id: str, tenant: str | None = None) -> bytes:
    """Return the JSON body of a request that sends `text`; the call has the id `message_id` too."""
    params = spelling.params(text, message_id)
    if not spelling.is_rpc:
        return json.dumps(params).encode()
    if tenant and spelling.takes_tenant:
        params["tenant"] = tenant
    call = {"jsonrpc": "2.0", "id": message_id, "method": spelling.name, "params": params}
    return json.dumps(call).encode()
