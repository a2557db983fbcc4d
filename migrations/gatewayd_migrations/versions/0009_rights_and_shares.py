"""What a tenant may ask for beyond the usual service, and its share of the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_COLUMNS = {
    "store_bytes": sa.Integer(),
    "service_class": sa.Text(),
    "retention_priority": sa.Integer(),
    "retention_seconds": sa.Integer(),
}


def upgrade() -> None:
    """Of no tenant so far: the defaults of the configuration hold."""
    for name, kind in _COLUMNS.items():
        op.add_column("tenants", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Forget them."""
    for name in _COLUMNS:
        op.execute(f"ALTER TABLE tenants DROP COLUMN {name}")
