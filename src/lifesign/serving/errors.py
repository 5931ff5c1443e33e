"""Errors of server processes."""

from lifesign.errors import LifesignError


class CannotListen(LifesignError):
    """The server cannot listen on this address and port."""

    def __init__(self, host: str, port: int, why: str, *, is_in_use: bool = False) -> None:
        super().__init__(f"cannot listen on {host}, port {port}: {why}")
        self.host = host
        self.port = port
        self.why = why
        if is_in_use:
            self.hint = "stop the other program, or pass another port"
