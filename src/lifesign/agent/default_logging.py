"""The log of an agent, shown on standard error in a program that sets no logging up."""

import logging

from lifesign.serving.stderr_handler import stderr_handler


def show_log() -> None:
    """Write lifesign's log messages from INFO on, unless the program has configured logging."""
    ours = logging.getLogger("lifesign")
    if ours.hasHandlers() or ours.level != logging.NOTSET:
        return
    shown = stderr_handler()
    shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    ours.addHandler(shown)
    ours.setLevel(logging.INFO)
