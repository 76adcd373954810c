# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Members of a group find each other in a store that still holds what others wrote."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch_tpu.distributed._meeting import meet

SIZE = 3


def everyone_meets(store: dist.Store, delays: list[float]) -> list[bytes]:
    """Let three ranks meet; each then reads what rank 0 writes."""
    found: list[bytes] = [b""] * SIZE

    def join(rank: int) -> None:
        time.sleep(delays[rank])
        own = meet(store.clone(), rank, SIZE, timedelta(seconds=20), range(SIZE))
        if rank == 0:
            assert not own.check(["word"])
            own.set("word", f"{delays}")
        found[rank] = own.get("word")

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_earlier_lives_are_left_alone():
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for delays in ([0, 0, 0], [0.2, 0, 0], [0, 0.2, 0.1], [0, 0, 0.3]):
        assert everyone_meets(store, delays) == [f"{delays}".encode()] * SIZE


def test_who_does_not_come_is_named():
    with pytest.raises(dist.DistStoreError, match=r"ranks \[7, 9\] did not come"):
        meet(dist.HashStore(), 1, 3, timedelta(seconds=0.1), [7, 8, 9])
