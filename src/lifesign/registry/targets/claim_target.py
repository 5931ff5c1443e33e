"""Claims of agents for crawled targets: the token that proves one."""

import secrets

from lifesign.domain.access.permissions import Permission
from lifesign.domain.common.finding import Finding
from lifesign.domain.errors import InvalidRequest
from lifesign.domain.lifecycle.status_table import Status
from lifesign.domain.models.base import moment
from lifesign.domain.models.links import LinkRequest, LinkToken
from lifesign.domain.net.allowed_addresses import AddressRefused
from lifesign.domain.targets.link_proof import claimed_urls, is_claim
from lifesign.domain.targets.opt_out_proof import (
    LINK_TOKEN_PREFIX,
    PROOF_PATH,
    TOKEN_BYTES,
    TOKEN_TTL_SECONDS,
    is_open,
    origin_of,
    token_of,
)
from lifesign.domain.targets.target import read_target, target_id
from lifesign.registry.errors import AgentGone, TooMany
from lifesign.registry.request_handling.operation import Call, Operation, OperationReply
from lifesign.registry.serializers.agent_records import existing_agent
from lifesign.storage.agents.agent_rows import StoredAgent
from lifesign.storage.engine.transaction import Transaction
from lifesign.storage.targets import target_links, target_rows
from lifesign.storage.targets.target_links import StoredClaim
from lifesign.storage.targets.target_rows import StoredTarget

MAX_AGENT_TOKENS = 8
"""Tokens that one agent may have."""
MAX_TOKENS = 10_000
"""Tokens of all agents."""
RETRY_SECONDS = 60.0
"""A repeated request checks for the token at once, unless a check was so recent."""


def issue_token(transaction: Transaction, call: Call) -> OperationReply:
    """Return a token by which the owner of a target proves that the target is this agent.

    If you repeat the request, you get the same token, and the registry looks for it at the target at once.
    """
    agent = existing_agent(transaction, call.agent_id, to_change=True)
    if agent.status == Status.DEREGISTERED:
        raise AgentGone(agent.agent_id, agent.status, agent.incarnation)
    target = _claimed(transaction, agent, call.body_as(LinkRequest).url)
    now_s = transaction.now_s
    known = _claim(transaction, target, agent)
    if known is None or known.token is None or not _is_good(known, now_s):
        if target_links.count_tokens(transaction, agent.id) >= MAX_AGENT_TOKENS:
            raise TooMany(f"link tokens of {agent.agent_id}", MAX_AGENT_TOKENS)
        if target_links.count_tokens(transaction) >= MAX_TOKENS:
            raise TooMany("link tokens", MAX_TOKENS)
        token = token_of(secrets.token_bytes(TOKEN_BYTES), LINK_TOKEN_PREFIX)
        target_links.put_token(transaction, target.id, agent.id, token)
    elif known.checked_at_s is not None and now_s - known.checked_at_s >= RETRY_SECONDS:
        target_links.check_token_now(transaction, target.id, agent.id)
    given = _claim(transaction, target, agent)
    assert given is not None  # noqa: S101 - it was stored just now
    return OperationReply(content=_token_shown(given), status=201)


def _claimed(transaction: Transaction, agent: StoredAgent, text: str) -> StoredTarget:
    """Return the target at a URL, if the agent claims it. Raises InvalidRequest."""
    url = read_target(text)
    if isinstance(url, AddressRefused):
        raise InvalidRequest([Finding(url.name, "/url", url.reason)])
    target = target_rows.find(transaction, target_id(url))
    if target is None or target.gone_at_s is not None:
        raise InvalidRequest([Finding("no_target", "/url", "no directory lists this URL as a target")])
    urls = claimed_urls(agent.card_url, agent.endpoint)
    if not is_claim(urls, target.url, target_links.found_card_url(transaction, target.id)):
        reason = "card_url and endpoint of the agent are neither the target's URL nor that of its card"
        raise InvalidRequest([Finding("not_claimed", "/url", reason)])
    return target


def _claim(transaction: Transaction, target: StoredTarget, agent: StoredAgent) -> StoredClaim | None:
    claims = target_links.claims_of(transaction, target.id, to_change=True)
    return next((claim for claim in claims if claim.agent == agent.id), None)


def _is_good(claim: StoredClaim, now_s: float) -> bool:
    return claim.token_at_s is not None or is_open(claim.requested_at_s or 0.0, now_s)


def _token_shown(claim: StoredClaim) -> LinkToken:
    requested_at_s = claim.requested_at_s or 0.0
    is_found = claim.token_at_s is not None
    return LinkToken(
        target_id=claim.target_id,
        url=claim.url,
        token=claim.token or "",
        proof_url=f"{origin_of(claim.url)}{PROOF_PATH}",
        requested_at=moment(requested_at_s),
        expires_at=None if is_found else moment(requested_at_s + TOKEN_TTL_SECONDS),
        checked_at=None if claim.checked_at_s is None else moment(claim.checked_at_s),
        proven_at=None if claim.token_at_s is None else moment(claim.token_at_s),
    )


OPERATIONS = (
    Operation(
        method="POST",
        path="/api/v1/agents/{agent_id}/links",
        summary="Get the token with which a target's owner proves that the target is this agent",
        action=Permission.UPDATE,
        function=issue_token,
        body=LinkRequest,
        example={"url": "https://agent.example/"},
        answer=LinkToken,
        status=201,
        errors=(404, 409, 410),
    ),
)
