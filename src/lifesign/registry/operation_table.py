"""All operations of the API, in the order of the OpenAPI document."""

from lifesign.registry.agents import (
    check_ready,
    drain_agent,
    erase_agent,
    find_agents,
    list_scrape_targets,
    override_status,
    register_agent,
    send_command,
    show_history,
    update_agent,
)
from lifesign.registry.events import manage_webhooks, read_events
from lifesign.registry.keys import manage_keys
from lifesign.registry.leases import find_leases, write_state
from lifesign.registry.probing import (
    accept_observations,
    claim_shards,
    manage_monitor,
    show_census,
)
from lifesign.registry.request_handling.operation import Operation
from lifesign.registry.targets import (
    claim_target,
    compare_interfaces,
    feed_targets,
    import_directory,
    list_targets,
    opt_out_origins,
    recheck_target,
)
from lifesign.registry.tasks import (
    cancel_task,
    charge_calls,
    create_task,
    find_tasks,
    resolve_handoff,
    review_task,
    run_task,
    top_up_budget,
)

OPERATIONS: tuple[Operation, ...] = (
    register_agent.REGISTER_AGENT,
    *find_agents.OPERATIONS,
    *check_ready.OPERATIONS,
    *list_scrape_targets.OPERATIONS,
    *show_history.OPERATIONS,
    *update_agent.OPERATIONS,
    *drain_agent.OPERATIONS,
    *send_command.OPERATIONS,
    *read_events.OPERATIONS,
    *erase_agent.OPERATIONS,
    *find_leases.OPERATIONS,
    *write_state.OPERATIONS,
    *create_task.OPERATIONS,
    *find_tasks.OPERATIONS,
    *run_task.OPERATIONS,
    *charge_calls.OPERATIONS,
    cancel_task.CANCEL_TASK,
    resolve_handoff.RESOLVE_HANDOFF,
    review_task.REVIEW_TASK,
    top_up_budget.TOP_UP,
    *manage_keys.OPERATIONS,
    *manage_webhooks.OPERATIONS,
    *accept_observations.OPERATIONS,
    *claim_target.OPERATIONS,
    *claim_shards.OPERATIONS,
    *feed_targets.OPERATIONS,
    *list_targets.OPERATIONS,
    *compare_interfaces.OPERATIONS,
    *recheck_target.OPERATIONS,
    *show_census.OPERATIONS,
    *opt_out_origins.OPERATIONS,
    *import_directory.OPERATIONS,
    *override_status.OPERATIONS,
    *manage_monitor.OPERATIONS,
)
