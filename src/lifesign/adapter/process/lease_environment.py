"""Environment of an agent's process: its lease, and the adapter's variables (protocol 6.10)."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from lifesign.client.environment_variables import VARIABLE_PREFIX
from lifesign.domain.models.tasks import TaskGrant
from lifesign.domain.text.times import utc_text

RUN_ID_VARIABLE: Final = f"{VARIABLE_PREFIX}RUN_ID"
"""Variable that identifies the run of a process, unless the agent removes it."""


_NO_PROXY_VARIABLES: Final = ("NO_PROXY", "no_proxy")


class ToolProxyAddress(Protocol):
    """URL and token with which an agent reaches its tools."""

    @property
    def url(self) -> str:
        """URL of the MCP server (streamable HTTP) that offers the tools."""

    @property
    def run_token(self) -> str:
        """Token that the agent sends to the tools' URL, valid for this run only."""


def lease_record(grant: TaskGrant, workspace: Path) -> dict[str, object]:
    """Return the lease as a process gets it: in the form of the lease protocol, "Lease acquisition"."""
    envelope = grant.budget.envelope
    return {
        "taskId": grant.task.task_id,
        "runId": grant.run_id,
        "leaseExpiresAt": utc_text(grant.lease.expires_at),
        "fencingToken": grant.lease.fencing_token,
        "budgetEnvelope": {"tokens": envelope.tokens, "usd": envelope.usd},
        "workspacePath": str(workspace),
    }


def _exception_from_http_proxies(variables: Mapping[str, str], host: str) -> dict[str, str]:
    """Return the variables with which no client sends requests for `host` to a proxy of the environment.

    Clients do not except loopback themselves: a proxy would get the token of the run.
    """
    upper, lower = _NO_PROXY_VARIABLES
    excepted = {}
    for name, other in ((upper, lower), (lower, upper)):
        # A client that finds the one does not read the other.
        listed = variables.get(name, variables.get(other, "")).strip(" ,")
        is_excepted = host in listed.replace(" ", ",").split(",") or listed == "*"
        excepted[name] = listed if is_excepted else f"{listed},{host}".lstrip(",")
    return excepted


def environment_of(
    grant: TaskGrant,
    workspace: Path,
    inherited: Mapping[str, str],
    *,
    tools: ToolProxyAddress | None,
    hidden: Collection[str] = (),
) -> dict[str, str]:
    """Return the complete environment of an agent's process.

    It contains our variables (`inherited`) without hidden ones and without lifesign's own: no key is passed
    on.
    """
    variables = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(VARIABLE_PREFIX) and name not in hidden
    }
    # Python keeps its output back if that is a pipe: an agent that prints would count as silent.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    lease = lease_record(grant, workspace)
    members = {
        "LEASE": json.dumps(lease),
        "TASK_ID": grant.task.task_id,
        "RUN_ID": grant.run_id,
        "FENCING_TOKEN": str(grant.lease.fencing_token),
        "LEASE_EXPIRES_AT": str(lease["leaseExpiresAt"]),
        "WORKSPACE": str(workspace),
    }
    if tools is not None:
        members |= {"PROXY_URL": tools.url, "RUN_TOKEN": tools.run_token}
        variables |= _exception_from_http_proxies(variables, str(urlsplit(tools.url).hostname))
    return variables | {f"{VARIABLE_PREFIX}{name}": value for name, value in members.items()}
