"""Seals (MACs) of reservations, which detect rows that the daemon did not write.

The seal covers all columns of a row. A settled row has a valid seal, too, and might be restored:
therefore each reservation has a tag, and its tenant's budget, which is sealed, has the sum of the
tags of all reservations that count in it. Only the present reservations match the sum: a tag has
48 bits, so a forged match would need millions of rows.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection

from gatewayd.store.prepared import raw_of
from gatewayd.store.tables import reservations
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost
from gatewayd.tenants.billing.prices import Price
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

# Sums of 32,768 tags of 48 bits fit into SQLite's 64-bit integers.
_TAG_BYTES = 6
_NAMES = [column.name for column in reservations.c if column.name != "seal"]
_READ = f"SELECT rowid, CAST(seal AS BLOB), {', '.join(_NAMES)} FROM reservations"
_values = itemgetter(*_NAMES)
_OF_A_TENANT = f"{_READ} WHERE tenant = ?"


class HeldReservation(NamedTuple):
    """A verified row of the reservations table.

    Attributes:
        number: SQLite's rowid, whatever its id is.
        id: its id, as text.
        tenant: the tenant that it names.
        has_seal: whether it has any seal.
        entry: the reserved request; None if the seal is not valid.
        period_begin: begin of the budget period that it counts in; -1 for none.
    """

    number: int
    id: str
    tenant: str
    has_seal: bool
    entry: LedgerEntry | None
    period_begin: int


class Amounts(NamedTuple):
    """Sums of reservations."""

    tokens: int = 0
    micros: int = 0
    tags: int = 0

    def less(self, other: Amounts) -> Amounts:
        """The difference of each amount."""
        return Amounts(*(mine - its for mine, its in zip(self, other, strict=True)))


def seal_of_row(secret: ServerSecret, row: Mapping[str, object]) -> bytes:
    """The seal of a row that is to be written, given by column names."""
    return _seal(secret, _values(row))


def seal_of(secret: ServerSecret, entry: LedgerEntry, period_begin: int) -> bytes:
    """The seal of a reservation in the budget period that began at ``period_begin``."""
    asked, price = entry.asked, entry.price
    return _seal(
        secret,
        (
            entry.id,
            asked.request_id,
            asked.tenant,
            asked.key_id,
            asked.endpoint,
            asked.model,
            entry.created_at,
            asked.prompt_tokens,
            asked.tokens,
            entry.micros,
            price.input,
            price.cached,
            price.output,
            period_begin,
        ),
    )


def is_sealed(secret: ServerSecret, entry: LedgerEntry, period_begin: object, seal: object) -> bool:
    """Whether a row's period is sealed by this server."""
    if not (isinstance(period_begin, int) and isinstance(seal, bytes)):
        return False
    return hmac.compare_digest(seal, seal_of(secret, entry, period_begin))


def tag_of(secret: ServerSecret, entry_id: str) -> int:
    """The summand of a reservation in ``reserved_tags`` of its budget."""
    return int.from_bytes(secret.reservation(entry_id.encode())[:_TAG_BYTES])


def sum_of(secret: ServerSecret, entries: Iterable[LedgerEntry]) -> Amounts:
    """Sum up reservations."""
    tokens = micros = tags = 0
    for entry in entries:
        tokens += entry.asked.tokens
        micros += entry.micros
        tags += tag_of(secret, entry.id)
    return Amounts(tokens, micros, tags)


def read(
    connection: Connection, secret: ServerSecret, tenant: str | None = None
) -> list[HeldReservation]:
    """Read all rows, or those of a tenant, and verify each seal."""
    found = _rows(connection, _READ) if tenant is None else _rows(connection, _OF_A_TENANT, tenant)
    return [_held(secret, *row) for row in found]


def seal_all(connection: Connection, secret: ServerSecret) -> None:
    """Seal all rows and their sums, in a store without seals."""
    raw, tags = raw_of(connection), dict[tuple[str, int], int]()
    update = "UPDATE reservations SET seal = ? WHERE rowid = ?"
    for number, _, *values in _rows(connection, _READ):
        if _entry(values) is not None:
            # By rowid, since an edited id may be of any type.
            raw.execute(update, (_seal(secret, tuple(values)), number))
    for row in read(connection, secret):
        if row.entry is not None:
            of = row.entry.asked.tenant, row.period_begin
            tags[of] = tags.get(of, 0) + tag_of(secret, row.entry.id)
    for (tenant, begin), total in tags.items():
        raw.execute(
            "UPDATE budgets SET reserved_tags = ? WHERE tenant = ? AND period_begin = ?",
            (total, tenant, begin),
        )


def _held(secret: ServerSecret, number: int, seal: bytes | None, *values: Any) -> HeldReservation:  # noqa: ANN401 - SQLite's
    # The seal before the content: only what the daemon wrote is parsed.
    is_ours = seal is not None and hmac.compare_digest(seal, _seal(secret, values))
    entry = _entry(values) if is_ours else None
    begin = -1 if entry is None else values[-1]
    return HeldReservation(number, str(values[0]), str(values[2]), seal is not None, entry, begin)


def _entry(values: Sequence[Any]) -> LedgerEntry | None:
    """Parse a row; None if no program can have written it so."""
    entry_id, request_id, tenant, key_id, endpoint, model, *numbers = values
    texts = (entry_id, request_id, tenant, endpoint, model, key_id or "")
    if not all(isinstance(text, str) for text in texts):
        return None
    if not all(isinstance(number, int) for number in numbers):
        return None
    created_at, prompt, tokens, micros, *prices, _ = numbers
    asked = RequestedCost(request_id, tenant, key_id, endpoint, model, prompt, tokens - prompt)
    entry = LedgerEntry(entry_id, asked, Price(*prices), created_at, True)
    # A row of the daemon has the amount that its own prices give.
    return entry if entry.micros == micros and 0 <= prompt <= tokens else None


def _rows(connection: Connection, query: str, *given: str) -> list[tuple[Any, ...]]:
    raw = raw_of(connection)
    # An edited row may hold bytes that are not valid text, and must not prevent the start.
    before, raw.text_factory = raw.text_factory, _text
    try:
        return raw.execute(query, given).fetchall()
    finally:
        raw.text_factory = before


def _seal(secret: ServerSecret, values: tuple[object, ...]) -> bytes:
    """Seal the values' representation, which differs for other values and other types."""
    return secret.reservation(repr(values).encode())


def _text(found: bytes) -> str:
    return found.decode(errors="replace")
