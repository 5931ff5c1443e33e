"""Examples of request bodies and path parameters."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

EXAMPLES_IN_PATH = MappingProxyType({
    "agent_id": "agent_billing_01",
    "intent_id": "intent_42",
    "scope": "research",
    "lease_id": "lease_1_4294967297_abcdefghijklmnopqrstuvwxyz",
    "key_id": "key_01jd0000000000000000000000",
    "role_id": "billing-processor",
    "webhook_id": "webhook_01jd0000000000000000000000",
    "target_id": "tgt_0123456789abcdef0123456789abcdef",
    "shard": 17,
    "directory": "a2aregistry.org",
    "import_id": "2026-02-08",
    "page": 1,
    "run_id": "2026-02-08",
    "task_id": "task_01kgxw0f7t3v2m9q8s4r5n6b01",
    "call_id": "call-1",
})  # fmt: skip
"""Examples by the name of the path parameter."""

_OF_RUN = MappingProxyType({"run_id": "run_01kgxw0f7t3v2m9q8s4r5n6b02", "fencing_token": 4294967297})
EXAMPLES: Mapping[str, Any] = MappingProxyType({
    "Registration": {
        "agent_id": "agent_billing_01",
        "role_id": "billing-processor",
        "name": "Billing Processor",
        "capabilities": ["billing", "invoicing"],
        "capacity": {"max_concurrent_tasks": 5},
    },
    "AgentUpdate": {"capabilities": ["billing"], "max_concurrent_tasks": 3},
    "Heartbeat": {"status": "active", "current_load": 3, "client_timestamp": "2026-02-08T10:30:00Z"},
    "TaskCreation": {
        "title": "Write the landing page",
        "role_id": "writers",
        "input": {"brief": "https://example.com/brief"},
        "budget": {"tokens": 250000, "usd": 1.5},
    },
    "TaskClaim": {"role_id": "writers", "wait_seconds": 30},
    "ProgressWrite": {
        **_OF_RUN,
        "idempotency_key": "report-1",
        "report": {
            "summary": "Drafted the hero section",
            "attempted": [{"action": "fetch brand assets", "outcome": "success"}],
            "nextStep": "Write three variants of the hero copy",
        },
    },
    "CompletionWrite": {**_OF_RUN, "idempotency_key": "done", "output": {"page": "index.html"}},
    "HelpWrite": {**_OF_RUN, "idempotency_key": "help", "reason": "Which logo is the current one?"},
    "DelegationWrite": {
        **_OF_RUN,
        "idempotency_key": "child-1",
        "task": {"title": "Crop the photographs", "budget": {"tokens": 20000, "usd": 0.25}},
    },
    "RunRelease": {**_OF_RUN, "idempotency_key": "end", "exit_reason": "crash", "exit_code": 1},
    "RunWrite": dict(_OF_RUN),
    "CallReservation": {**_OF_RUN, "call_id": "call-1", "tool": "fetch", "most": {"tokens": 0, "usd": 0.01}},
    "CallSettlement": {**_OF_RUN, "cost": {"tokens": 0, "usd": 0.004}},
    "TaskReview": {"verdict": "reject", "comment": "The logo is last year's."},
    "HandoffResolution": {"resolution": "requeue", "comment": "logo-2026.svg"},
    "TaskCancellation": {"reason": "no longer needed"},
    "BudgetTopUp": {"add": {"tokens": 100000, "usd": 0.5}},
    "StatusChange": {"status": "draining", "drain_timeout_seconds": 120},
    "CommandRequest": {"command": "drain", "reason": "maintenance_window", "drain_timeout_seconds": 120},
    "LeaseRequest": {"resource": "intent:intent_42/research", "ttl_seconds": 300},
    "LeaseRenewal": {"fencing_token": 4294967297, "ttl_seconds": 300},
    "State": {"progress": 0.5, "next_step": "compare the sources"},
    "NewKey": {"role": "reader", "name": "dashboard"},
    "NewWebhook": {"url": "https://hooks.example/in", "types": ["agent.lifecycle"]},
    "SecretRotation": {"overlap_seconds": 86400},
    "KeyLimits": {"max_workers": 32},
    "KeyRotation": {"overlap_seconds": 3600},
    "Maintenance": {"seconds": 3600, "reason": "new disks"},
    "OverrideRequest": {"status": "active", "seconds": 900, "reason": "its probes are refused by a firewall"},
    "Confirmation": {"network_class": "10.1.0.0/16"},
    "ShardClaimRequest": {"worker": "prober-1", "ttl_seconds": 60, "held": {"17": 4294967297}},
    "ImportPageRequest": {
        "urls": ["https://agent.example/.well-known/agent-card.json", "other.example"],
        "source": "https://a2aregistry.org/api/agents",
    },
    "ImportEndRequest": {"pages": 1},
    "OptOutRequest": {"url": "https://agent.example"},
    "LinkRequest": {"url": "https://agent.example/"},
    "RunRequest": {"name": "census", "is_over": True},
    "ObservationBatch": {
        "observations": [
            {
                "agent_id": "agent_billing_01",
                "observed_at": "2026-02-08T10:30:00Z",
                "transport": {"result": "ok", "status_code": 200, "latency_ms": 41.5},
                "network_class": "public_ipv4",
                "address": "192.0.2.7",
            }
        ],
        "tokens": {"311": 4_294_967_297},
        "ages_s": [1.5],
        "numbers": [42],
        "interval_s": 300.0,
    },
})  # fmt: skip
"""A body of each model, by its name."""
