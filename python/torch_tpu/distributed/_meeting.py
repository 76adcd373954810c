# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Members of a group agree on a part of the store that nobody has written to.

After ``torchrun --max-restarts`` has started the processes again, the store still holds what the
processes before them wrote: addresses where nobody listens, counts of collectives. The number of
restarts does not tell them apart: hosts whose own processes did not fail count none.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

__all__ = ["meet"]

_PAUSE = 0.002


def meet(
    store: dist.Store, rank: int, size: int, timeout: timedelta, ranks: Sequence[int]
) -> dist.Store:
    """Wait for all members and return a store that only they, in this life, write to.

    Everyone writes down a token of its own and, again and again, what it makes of all tokens. When
    all make the same of them, nobody has looked at a token of an earlier life: its owner would
    still have to agree with tokens that it never saw.

    Parameters
    ----------
    store : torch.distributed.Store
        The group's own part of the job's store.
    rank, size : int
        In the group.
    timeout : datetime.timedelta
    ranks : sequence of int
        Of the members in the job, to name those that did not come.

    Raises
    ------
    torch.distributed.DistStoreError
        If a member did not come in time.
    """
    store.set(f"token/{rank}", uuid.uuid4().hex)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        tokens = _read(store, "token", size)
        if tokens:
            view = hashlib.sha256(b",".join(tokens)).hexdigest()
            store.set(f"view/{rank}", view)
            views = _read(store, "view", size)
            if views and all(other == view.encode() for other in views):
                return dist.PrefixStore(view[:16], store)
        if time.monotonic() > deadline:
            missing = [ranks[k] for k in range(size) if not store.check([f"token/{k}"])]
            raise dist.DistStoreError(
                f"a group of {size} ranks could not be made within {timeout}: "
                + (f"ranks {missing} did not come" if missing else "they do not agree on it")
            )
        time.sleep(_PAUSE)


def _read(store: dist.Store, what: str, size: int) -> list[bytes]:
    """Return what each member wrote, nothing if one has not written yet."""
    keys = [f"{what}/{rank}" for rank in range(size)]
    return store.multi_get(keys) if store.check(keys) else []
