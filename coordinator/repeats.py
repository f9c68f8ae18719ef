"""When a transaction whose answer was lost may be sent again, and how its success is recognised.

A lost answer (deadline, broken connection) says nothing: the transaction may have been applied,
may have been dropped, or may still be applied later. The rule:

* A transaction that writes nothing is sent again freely.
* A *self-closing* one is sent again: its success branch changes a key so that its own guard on that
  key cannot hold a second time (`unchanged` or `absent`, and a put). So two copies of it never both
  succeed. If the repeat succeeds, that is the answer. If it does not, the first copy may have been
  the reason: with a nonce, a key that holds it proves that; else the outcome stays unknown.
* Every other transaction (an unguarded put, a write in the failure branch) is sent once. Repeating
  it could undo what somebody else wrote in between.

A guard `absent` (or one of a version) can hold again when the key is deleted meanwhile. Whoever may
delete the key within the seconds of a call must expect that a delayed copy creates it again;
attaching the key to a lease, or guarding by a revision (`unchanged`), excludes it.
"""

from __future__ import annotations

from resilient_ps.coordinator.kv import MIN_NONCE_BYTES, Compare, Delete, Op, Put, Read, Txn, covers
from resilient_ps.errors import BadInput


def writes_nothing(txn: Txn) -> bool:
    return all(isinstance(op, Read) for op in (*txn.success, *txn.failure))


def is_self_closing(txn: Txn) -> bool:
    """Whether the transaction's success makes one of its own guards false."""
    if not all(isinstance(op, Read) for op in txn.failure):
        return False
    return any(_closes(op, guard) for guard in txn.compares for op in txn.success)


def may_repeat(txn: Txn) -> bool:
    return writes_nothing(txn) or is_self_closing(txn)


def check_nonce(txn: Txn, nonce: bytes) -> None:
    """`BadInput` unless a lost answer of this transaction can be recognised by the nonce."""
    if len(nonce) < MIN_NONCE_BYTES:
        raise BadInput(f"nonce of {len(nonce)} bytes; use at least {MIN_NONCE_BYTES} random ones")
    if not any(isinstance(op, Put) and nonce in op.value for op in txn.success):
        raise BadInput("the nonce is in no value that the success branch puts: embed it in one")
    if any(isinstance(op, Read) for op in txn.success):
        raise BadInput(
            "a transaction with a nonce cannot read in its success branch: the reads of a lost "
            "answer cannot be repeated; read before or after it"
        )


def nonce_puts(txn: Txn, nonce: bytes) -> tuple[Put, ...]:
    """The puts of the success branch whose values hold the nonce."""
    return tuple(op for op in txn.success if isinstance(op, Put) and nonce in op.value)


def _closes(op: Op, guard: Compare) -> bool:
    if guard.op != "=" or guard.target in ("value", "lease"):
        return False
    if isinstance(op, Put):
        # A put gives a new revision and version; the create revision changes only from absent.
        return op.key == guard.key and (guard.target != "create" or guard.operand == 0)
    return isinstance(op, Delete) and covers(op, guard.key) and guard.operand != 0
