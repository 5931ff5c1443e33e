"""Where is the card of an agent that a prober found, and what did a directory list?

Both stood in one column: the card's place was taken for what was listed.
"""

import sqlalchemy as sa
from alembic import op

from lifesign.domain.net.target import TARGET_ID_PREFIX

revision = "0011"
down_revision = "0010"

_OF_SQLITE = "probed.memory ->> 'card_url'"
_OF_POSTGRESQL = "CAST(probed.memory AS json) ->> 'card_url'"


def upgrade() -> None:
    """Part the two; what registered itself keeps the card that it declared."""
    op.add_column(
        "agents",
        sa.Column("target_url", sa.String(2048), comment="of a record that began with what a prober found"),
    )
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    op.execute(
        sa.text(f"""
            UPDATE agents SET target_url = found.url, card_url = found.card_url
            FROM (
                SELECT targets.subject_id, targets.url,
                    {_OF_POSTGRESQL if is_postgresql else _OF_SQLITE} AS card_url
                FROM targets LEFT JOIN probed ON probed.target = targets.id
                WHERE NOT targets.is_registered
            ) AS found
            WHERE agents.agent_id = found.subject_id AND agents.monitoring = 'probe'
                AND substr(agents.agent_id, 1, {len(TARGET_ID_PREFIX)}) = '{TARGET_ID_PREFIX}'
        """)  # noqa: S608 - constants only
    )
