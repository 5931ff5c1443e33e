"""Errors of server processes."""

from lifesign.errors import LifesignError


class CannotListen(LifesignError):
    """The server cannot listen on this address and port."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"cannot listen on {host}, port {port}: {why}")
        self.host = host
        self.port = port
        self.why = why
