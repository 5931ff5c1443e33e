"""Tools for the holder of a task (protocol 6.8)."""

from collections.abc import Sequence
from typing import Final

from lifesign.mcp.delegate_subtask import DELEGATE_SUBTASK
from lifesign.mcp.mark_complete import MARK_COMPLETE
from lifesign.mcp.report_progress import REPORT_PROGRESS
from lifesign.mcp.request_human_help import REQUEST_HUMAN_HELP
from lifesign.mcp.tool_definition import Tool

TASK_TOOLS: Final[Sequence[Tool]] = (REPORT_PROGRESS, MARK_COMPLETE, REQUEST_HUMAN_HELP, DELEGATE_SUBTASK)
"""Tools of a server that is bound to a run."""
ENDING: Final = frozenset({MARK_COMPLETE.name, REQUEST_HUMAN_HELP.name})
"""Tools after which the run has ended."""
