"""Which tools has whoever holds a task? (protocol 6.8)"""

from collections.abc import Sequence
from typing import Final

from agent_health.mcp.delegate_subtask import DELEGATE_SUBTASK
from agent_health.mcp.mark_complete import MARK_COMPLETE
from agent_health.mcp.report_progress import REPORT_PROGRESS
from agent_health.mcp.request_human_help import REQUEST_HUMAN_HELP
from agent_health.mcp.tool import Tool

TASK_TOOLS: Final[Sequence[Tool]] = (REPORT_PROGRESS, MARK_COMPLETE, REQUEST_HUMAN_HELP, DELEGATE_SUBTASK)
"""As they are where the server is bound to a run."""
ENDING: Final = frozenset({MARK_COMPLETE.name, REQUEST_HUMAN_HELP.name})
"""Those after which the run is over."""
