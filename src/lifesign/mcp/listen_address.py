"""Address of the HTTP server, and the accepted host names."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from lifesign.errors import InvalidValue

DEFAULT_PORT: Final = 8441

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
"""Host names under which requests may address this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Address of the server, with its names."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: any that is free."""
    names: Sequence[str] = ()
    """Names under which clients reach it, besides `host`."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect to the address."""
        if self.host == "localhost":
            return True
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return False

    def accepted_hosts(self) -> list[str]:
        """Return the accepted hosts of requests; InvalidValue if there is none."""
        is_everywhere = self.host in {"", "0.0.0.0", "::"}  # noqa: S104 - they are compared, not listened on
        if is_everywhere and not self.names:
            raise InvalidValue("--allow-host", None, f"a name by which clients reach {self.host}")
        own = f"[{self.host}]" if ":" in self.host else self.host
        hosts = [*self.names, *([] if is_everywhere else [own]), *LOOPBACK_NAMES]
        return list(dict.fromkeys(hosts))
