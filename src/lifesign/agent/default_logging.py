"""The log of an agent, shown on standard error in a program that sets no logging up."""

import logging


def show_log() -> None:
    """Write lifesign's log messages from INFO on, unless the program has configured logging."""
    ours = logging.getLogger("lifesign")
    if ours.hasHandlers() or ours.level != logging.NOTSET:
        return
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    ours.addHandler(shown)
    ours.setLevel(logging.INFO)
