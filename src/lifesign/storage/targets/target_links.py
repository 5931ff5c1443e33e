"""Links: claims of agents for targets, their proofs, and the linked pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from lifesign.domain.targets.target import target_id
from lifesign.storage.engine.array_params import given, is_given
from lifesign.storage.engine.table_definitions import (
    agents,
    links,
    observed,
    probe_results,
    target_claims,
    targets,
)
from lifesign.storage.engine.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClaim:
    """One agent's claim to be a target, with the columns of agent and target that decide about a link."""

    target: int
    target_id: str
    url: str
    target_is_gone: bool
    memory: str | None
    agent: int
    agent_id: str
    status: str
    card_url: str | None
    endpoint: str | None
    registry: str | None
    card_at_s: float | None
    token: str | None
    requested_at_s: float | None
    checked_at_s: float | None
    token_at_s: float | None
    unlinked_at_s: float | None
    proof: str | None
    """Proof at the last decision about links."""

    @property
    def found_card_url(self) -> str | None:
        """URL at which the prober last requested the target's card."""
        url = None if self.memory is None else from_json(self.memory).get("card_url")
        return url if isinstance(url, str) else None


@dataclass(frozen=True, slots=True)
class CardFound:
    """The registry and the agent that a target's card names, if any."""

    target: int
    at_s: float
    registry: str | None
    agent_id: str | None
    card_url: str | None = None
    """URL at which the prober requested the card."""


class CardClaimant(NamedTuple):
    """A registered agent that a target's card names."""

    agent: int
    agent_id: str
    card_url: str | None
    endpoint: str | None


@dataclass(frozen=True, slots=True)
class StoredLink:
    """A link: a target and an agent that are the same thing."""

    target: int
    agent: int
    agent_id: str
    linked_at_s: float


_CLAIMS = (
    select(
        target_claims.c.target, targets.c.subject_id.label("target_id"), targets.c.url,
        targets.c.gone_at_s.is_not(None).label("target_is_gone"), probe_results.c.memory,
        target_claims.c.agent, agents.c.agent_id, agents.c.status, agents.c.card_url, agents.c.endpoint,
        *(target_claims.c[name] for name in (
            "registry", "card_at_s", "token", "requested_at_s", "checked_at_s", "token_at_s", "unlinked_at_s",
            "proof",
        )),
    )
    .select_from(
        target_claims.join(targets, targets.c.id == target_claims.c.target)
        .join(agents, agents.c.id == target_claims.c.agent)
        .outerjoin(probe_results, probe_results.c.target == targets.c.id)
    )
    .order_by(target_claims.c.target, target_claims.c.agent)
)  # fmt: skip
_LINKS = select(links.c.target, links.c.agent, agents.c.agent_id, links.c.linked_at_s).join(
    agents, agents.c.id == links.c.agent
)
_MAKE_DUE = update(target_claims).values(due_at_s=0.0)
_MAKE_DUE_BY_TARGET = _MAKE_DUE.where(target_claims.c.target.in_(bindparam("numbers", expanding=True)))
_SAME_TARGET = target_claims.alias()
_MAKE_DUE_BY_AGENT = _MAKE_DUE.where(
    target_claims.c.target.in_(
        select(_SAME_TARGET.c.target)
        .join(agents, agents.c.id == _SAME_TARGET.c.agent)
        .where(agents.c.agent_id.in_(bindparam("agent_ids", expanding=True)))
    )
)
# Agents that registered: the record of a crawled target claims nothing.
_NOTE_CARDS = """
    INSERT INTO target_claims (target, agent, registry, card_at_s, due_at_s)
    SELECT {target}, agents.id, {registry}, {at_s}, 0
    FROM {source} JOIN agents ON agents.agent_id = {agent_id} AND agents.target_url IS NULL
    WHERE true ORDER BY 1, 2
    ON CONFLICT (target, agent) DO UPDATE SET
        due_at_s = CASE
            WHEN target_claims.card_at_s IS NULL OR target_claims.registry <> excluded.registry
            THEN 0 ELSE target_claims.due_at_s
        END,
        registry = excluded.registry, card_at_s = excluded.card_at_s
"""
_NOTE_CARDS_SQLITE = text(
    _NOTE_CARDS.format(
        source="json_each(:rows) AS given",
        target="given.value ->> 0",
        at_s="given.value ->> 1",
        registry="given.value ->> 2",
        agent_id="given.value ->> 3",
    )
)
_NOTE_CARDS_POSTGRESQL = text(
    _NOTE_CARDS.format(
        source="json_array_elements(CAST(:rows AS json)) AS given",
        target="CAST(given ->> 0 AS bigint)",
        at_s="CAST(given ->> 1 AS double precision)",
        registry="given ->> 2",
        agent_id="given ->> 3",
    )
)


def claimants(transaction: Transaction, agent_ids: Sequence[str]) -> dict[str, CardClaimant]:
    """Return those of these agents that are registered, by their ids."""
    if not agent_ids:
        return {}
    columns = (agents.c.id, agents.c.agent_id, agents.c.card_url, agents.c.endpoint)
    wanted = select(*columns).where(agents.c.agent_id.in_(agent_ids), agents.c.target_url.is_(None))
    return {row.agent_id: CardClaimant(*row) for row in transaction.connection.execute(wanted)}


def named_by_cards(transaction: Transaction, agent: int, limit: int) -> set[int]:
    """Return at most `limit` targets whose cards name an agent."""
    wanted = select(target_claims.c.target).where(
        target_claims.c.agent == agent, target_claims.c.card_at_s.is_not(None)
    )
    return set(transaction.connection.scalars(wanted.limit(limit)))


def note_cards(transaction: Transaction, cards: Sequence[CardFound]) -> None:
    """Store the claims that targets' cards make, at most one per target."""
    if not cards:
        return
    connection = transaction.connection
    named = [(card.target, card.at_s, card.registry, card.agent_id) for card in cards if card.agent_id]
    if named:
        statement = _NOTE_CARDS_POSTGRESQL if transaction.is_postgresql else _NOTE_CARDS_SQLITE
        connection.execute(statement, {"rows": to_json(sorted(named)).decode()})
    names = {card.target: card.agent_id for card in cards}
    before = (
        select(target_claims.c.target, target_claims.c.agent, agents.c.agent_id)
        .join(agents, agents.c.id == target_claims.c.agent)
        .where(
            is_given(target_claims.c.target, is_postgresql=transaction.is_postgresql),
            target_claims.c.card_at_s.is_not(None),
        )
    )
    for target, agent, agent_id in connection.execute(before, given(transaction, [*names])).all():
        if names[target] != agent_id:
            disproven = update(target_claims).where(_is(target, agent))
            connection.execute(disproven.values(card_at_s=None, registry=None, due_at_s=0.0))


def make_claims_due(
    transaction: Transaction, *, numbers: Sequence[int] = (), agent_ids: Sequence[str] = ()
) -> None:
    """Make the claims of these targets, and of these agents, due at once."""
    if numbers:
        transaction.connection.execute(_MAKE_DUE_BY_TARGET, {"numbers": [*numbers]})
    if agent_ids:
        transaction.connection.execute(_MAKE_DUE_BY_AGENT, {"agent_ids": [*agent_ids]})


def due(transaction: Transaction, limit: int) -> list[int]:
    """Return targets whose claims are due for a decision, the longest waiting first."""
    first = func.min(target_claims.c.due_at_s)
    wanted = (
        select(target_claims.c.target)
        .where(target_claims.c.due_at_s <= transaction.now_s)
        .group_by(target_claims.c.target)
        .order_by(first, target_claims.c.target)
        .limit(limit)
    )
    return list(transaction.connection.scalars(wanted))


def set_due(transaction: Transaction, target: int, at_s: float) -> None:
    """Store when the claims of a target are to be decided next."""
    statement = update(target_claims).where(target_claims.c.target == target)
    transaction.connection.execute(statement.values(due_at_s=at_s))


def claims_of(transaction: Transaction, target: int, *, to_change: bool = False) -> list[StoredClaim]:
    """Return the stored claims of a target."""
    wanted = _CLAIMS.where(target_claims.c.target == target)
    if to_change:
        wanted = wanted.with_for_update(of=target_claims)
    return [_claim(row) for row in transaction.connection.execute(wanted)]


def claims_by(transaction: Transaction, agent: int) -> list[StoredClaim]:
    """Return the stored claims of an agent."""
    return [
        _claim(row) for row in transaction.connection.execute(_CLAIMS.where(target_claims.c.agent == agent))
    ]


def link_of(transaction: Transaction, target: int) -> StoredLink | None:
    """Return the link of a target."""
    row = transaction.connection.execute(_LINKS.where(links.c.target == target)).one_or_none()
    return None if row is None else StoredLink(*row)


def linked_agents(transaction: Transaction, numbers: Sequence[int]) -> dict[int, int]:
    """Return the agent that each of these targets is linked to; targets without a link are left out."""
    is_one = is_given(links.c.target, is_postgresql=transaction.is_postgresql)
    wanted = select(links.c.target, links.c.agent).where(is_one)
    rows = transaction.connection.execute(wanted, given(transaction, numbers))
    return {link.target: link.agent for link in rows}


def links_to(transaction: Transaction, agent: int) -> list[StoredLink]:
    """Return the links of an agent, in the order of their targets."""
    wanted = _LINKS.where(links.c.agent == agent).order_by(links.c.target)
    return [StoredLink(*row) for row in transaction.connection.execute(wanted)]


def agent_of(transaction: Transaction, target_id: str) -> str | None:
    """Return the id of the agent that a target is linked to."""
    wanted = select(agents.c.agent_id).join(links, links.c.agent == agents.c.id)
    named = wanted.join(targets, targets.c.id == links.c.target).where(targets.c.subject_id == target_id)
    return transaction.connection.scalar(named)


def probed_for(transaction: Transaction, agent_id: str) -> str | None:
    """Return the id of the target whose results go into an agent's record: its first linked target."""
    wanted = select(targets.c.subject_id).join(links, links.c.target == targets.c.id)
    named = wanted.join(agents, agents.c.id == links.c.agent).where(agents.c.agent_id == agent_id)
    return transaction.connection.scalar(named.order_by(links.c.target).limit(1))


def all_links(transaction: Transaction, *, after: int, limit: int) -> list[Row[Any]]:
    """Return links with target numbers above `after`: target number, target id and agent id."""
    wanted = (
        select(links.c.target, targets.c.subject_id, agents.c.agent_id)
        .join(targets, targets.c.id == links.c.target)
        .join(agents, agents.c.id == links.c.agent)
        .where(links.c.target > after)
        .order_by(links.c.target)
        .limit(limit)
    )
    return list(transaction.connection.execute(wanted))


def link(transaction: Transaction, target: int, agent: int) -> None:
    """Store that a target and an agent are the same thing."""
    row = {"target": target, "agent": agent, "linked_at_s": transaction.now_s}
    transaction.connection.execute(insert(links).values(row))


def unlink(transaction: Transaction, target: int, agent: int) -> None:
    """Delete a link; its claim keeps the time of the end."""
    connection = transaction.connection
    connection.execute(delete(links).where(links.c.target == target))
    ended = update(target_claims).where(_is(target, agent))
    connection.execute(ended.values(unlinked_at_s=transaction.now_s))


def set_proofs(transaction: Transaction, target: int, proofs: Mapping[int, str | None]) -> None:
    """Store how each claim for a target is proven, by agent; None: it is not."""
    for agent, proof in sorted(proofs.items()):
        changed = update(target_claims).where(_is(target, agent))
        transaction.connection.execute(changed.values(proof=proof))


def remove_empty(transaction: Transaction, target: int, unlinked_before_s: float) -> None:
    """Delete the claims of a target that no card makes, that have no token, and that had no recent link."""
    is_recent = target_claims.c.unlinked_at_s > unlinked_before_s
    transaction.connection.execute(
        delete(target_claims).where(
            target_claims.c.target == target,
            target_claims.c.card_at_s.is_(None),
            target_claims.c.token.is_(None),
            or_(target_claims.c.unlinked_at_s.is_(None), ~is_recent),
        )
    )


def put_token(transaction: Transaction, target: int, agent: int, token: str) -> None:
    """Store a new token for a claim; an earlier token is replaced."""
    given = {"token": token, "requested_at_s": transaction.now_s, "checked_at_s": None, "token_at_s": None}
    changed = update(target_claims).where(_is(target, agent)).values(given | {"due_at_s": 0.0})
    if not transaction.connection.execute(changed).rowcount:
        added = {"target": target, "agent": agent, "due_at_s": 0.0, **given}
        transaction.connection.execute(insert(target_claims).values(added))


def check_token_now(transaction: Transaction, target: int, agent: int) -> None:
    """Mark the token of a claim for a check in the next round."""
    transaction.connection.execute(update(target_claims).where(_is(target, agent)).values(checked_at_s=None))


def count_tokens(transaction: Transaction, agent: int | None = None) -> int:
    """Return the number of tokens that were given out, to one agent or to all."""
    wanted = select(func.count()).select_from(target_claims).where(target_claims.c.token.is_not(None))
    if agent is not None:
        wanted = wanted.where(target_claims.c.agent == agent)
    return transaction.connection.scalar(wanted) or 0


def claim_checks(
    transaction: Transaction, *, open_before_s: float, proven_before_s: float, limit: int
) -> list[tuple[int, str]]:
    """Return number and URL of targets whose origins are to be checked for tokens now, reserved for us.

    No other process checks them meanwhile. A known token is checked again if the last check was before
    `proven_before_s`, any other one if it was before `open_before_s`.
    """
    wanted = _awaited(open_before_s, proven_before_s).distinct().limit(limit)
    found = [(int(target), str(url)) for target, url in transaction.connection.execute(wanted)]
    looked = update(target_claims).where(
        target_claims.c.target.in_([target for target, _ in found]), target_claims.c.token.is_not(None)
    )
    if found:
        transaction.connection.execute(looked.values(checked_at_s=transaction.now_s))
    return found


def are_checks_due(transaction: Transaction, *, open_before_s: float, proven_before_s: float) -> bool:
    """Return whether any origin is to be checked for tokens now; without a write."""
    wanted = _awaited(open_before_s, proven_before_s).limit(1)
    return transaction.connection.execute(wanted).first() is not None


def _awaited(open_before_s: float, proven_before_s: float) -> Select[Any]:
    checked_at_s, is_proven = target_claims.c.checked_at_s, target_claims.c.token_at_s.is_not(None)
    is_due = or_(
        checked_at_s.is_(None),
        and_(is_proven, checked_at_s <= proven_before_s),
        and_(~is_proven, checked_at_s <= open_before_s),
    )
    return (
        select(target_claims.c.target, targets.c.url)
        .join(targets, targets.c.id == target_claims.c.target)
        .where(target_claims.c.token.is_not(None), targets.c.gone_at_s.is_(None), is_due)
    )


def set_tokens_found(transaction: Transaction, target: int, seen: Mapping[int, bool]) -> None:
    """Store whether each agent's token was found at the target's origin."""
    for agent, is_served in sorted(seen.items()):
        at_s = transaction.now_s if is_served else None
        statement = update(target_claims).where(_is(target, agent))
        transaction.connection.execute(statement.values(token_at_s=at_s, due_at_s=0.0))


def forget_tokens(transaction: Transaction, asked_before_s: float) -> None:
    """Delete tokens that were given out before a time and never found."""
    old = (
        target_claims.c.token.is_not(None),
        target_claims.c.token_at_s.is_(None),
        target_claims.c.requested_at_s <= asked_before_s,
    )
    given = {"token": None, "requested_at_s": None, "checked_at_s": None, "due_at_s": 0.0}
    transaction.connection.execute(update(target_claims).where(*old).values(given))


def found_card_url(transaction: Transaction, target: int) -> str | None:
    """Return the URL at which the prober last requested a target's card; None: it found none."""
    memory = transaction.connection.scalar(
        select(probe_results.c.memory).where(probe_results.c.target == target)
    )
    url = None if memory is None else from_json(memory).get("card_url")
    return url if isinstance(url, str) else None


def find_crawled_target(transaction: Transaction, url: str, origin: str, beside: int) -> int | None:
    """Return the crawled target at the URL of a card, else the one at its origin whose card it is.

    None if there is none except the target `beside`, or if it counts as another one itself.
    """
    for name, is_exact in ((target_id(url), True), (target_id(origin), False)):
        wanted = select(targets.c.id).where(
            targets.c.subject_id == name,
            targets.c.id != beside,
            targets.c.gone_at_s.is_(None),
            targets.c.counts_as.is_(None),
        )
        number = transaction.connection.scalar(wanted)
        if number is not None and (is_exact or found_card_url(transaction, number) == url):
            return int(number)
    return None


def doubles_among(transaction: Transaction, numbers: Sequence[int]) -> set[int]:
    """Return those of these targets that are not counted, since another target is in their place."""
    if not numbers:
        return set()
    is_one = is_given(targets.c.id, is_postgresql=transaction.is_postgresql)
    wanted = select(targets.c.id).where(is_one, targets.c.counts_as.is_not(None))
    return set(transaction.connection.scalars(wanted, given(transaction, numbers)))


def set_counts_as(transaction: Transaction, target: int, other: int | None) -> None:
    """Store which target is counted in place of a target; None: the target itself."""
    is_new = targets.c.id == target, targets.c.counts_as.is_distinct_from(other)
    transaction.connection.execute(update(targets).where(*is_new).values(counts_as=other))


def forget_observed(transaction: Transaction, agent: int) -> None:
    """Delete an agent's observed facts."""
    transaction.connection.execute(delete(observed).where(observed.c.agent == agent))


def _is(target: int, agent: int) -> ColumnElement[bool]:
    return and_(target_claims.c.target == target, target_claims.c.agent == agent)


def _claim(row: Row[Any]) -> StoredClaim:
    members = dict(row._mapping)  # noqa: SLF001 - its public name
    members["target_is_gone"] = bool(members["target_is_gone"])
    return StoredClaim(**members)
