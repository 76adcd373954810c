# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Several processes that judge the same operator at the same time, as one group.

The first process leads: it starts the others and hands them its requests through a store. What the
ranks tell each other about an operator goes through that store too and not through the group, which
is what an operator may leave out of step.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import subprocess
import sys
import time
from typing import Any

import torch.distributed as dist

# Ranks may be apart by so much, at their start above all.
_GRACE_SECONDS = 120
_NOTHING = subprocess.DEVNULL
_IDLE_TIMEOUT = datetime.timedelta(hours=24)


@dataclasses.dataclass
class Ranks:
    """The place of this process in the group.

    Attributes
    ----------
    rank, size : int
    store : torch.distributed.Store
    seconds : int
        Limit for one request.
    children : list of subprocess.Popen
        The other ranks, in the leader.
    """

    rank: int
    size: int
    store: dist.Store
    seconds: int
    children: list[subprocess.Popen[bytes]] = dataclasses.field(default_factory=list)
    _request: int = 0
    _step: int = 0
    _groups: int = 0

    @property
    def collective_timeout(self) -> datetime.timedelta:
        """How long a rank that raised leaves the others waiting in a collective."""
        return datetime.timedelta(seconds=self.seconds / 4)

    def join(self) -> None:
        """Make the default group: Gloo for the host, ``tpu_dist`` for the device."""
        self._groups += 1
        # Loading PyTorch takes longer than a collective may.
        self._exchange(f"join{self._groups}", True)
        dist.init_process_group(
            "cpu:gloo,tpu:tpu_dist",
            store=dist.PrefixStore(f"group{self._groups}", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=self.collective_timeout,
        )

    def renew(self) -> None:
        """Make the group anew; all ranks call it after something that they did not do alike."""
        dist.destroy_process_group()
        self.join()

    def next_request(self, text: str | None = None) -> str:
        """Return the leader's next request; the leader gives it."""
        self._request, self._step = self._request + 1, 0
        key = f"request{self._request}"
        if self.rank == 0:
            self.store.set(key, text or "")
            return text or ""
        self.store.wait([key], _IDLE_TIMEOUT)
        return self.store.get(key).decode()

    def tell(self, what: Any) -> list[Any]:
        """Return what every rank says, by rank."""
        self._step += 1
        return self._exchange(str(self._step), what)

    def conclude(self, what: Any) -> list[Any]:
        """Return what every rank says at the end of a request, however far each one came."""
        return self._exchange("end", what)

    def _exchange(self, step: str, what: Any) -> list[Any]:
        keys = [f"{self._request}/{step}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(what))
        self._wait(keys)
        return [json.loads(self.store.get(key)) for key in keys]

    def _wait(self, keys: list[str]) -> None:
        """Look again and again: the store's own wait lets no signal through."""
        patience = self.seconds + _GRACE_SECONDS
        deadline = time.monotonic() + patience
        while not self.store.check(keys):
            if time.monotonic() > deadline:
                raise TimeoutError(f"a rank said nothing for {patience} s")
            if any(child.poll() is not None for child in self.children):
                raise RuntimeError("a rank is gone")
            time.sleep(0.001)


def lead(size: int, settings: dict[str, Any]) -> Ranks:
    """Start the other ranks as children of this process and join them; they end when it does.

    Parameters
    ----------
    size : int
        Processes, this one included.
    settings : dict
        What this process was started with.
    """
    store = dist.TCPStore("localhost", 0, size, is_master=True, wait_for_workers=False)
    children = []
    for rank in range(1, size):
        own = json.dumps({**settings, "rank": rank, "port": store.port})
        # Standard output belongs to the leader: its lines are answers.
        command = [*sys.orig_argv[:-1], own]
        children.append(subprocess.Popen(command, stdin=_NOTHING, stdout=_NOTHING))
    ranks = Ranks(0, size, store, settings["seconds"], children)
    ranks.join()
    return ranks


def follow(rank: int, size: int, port: int, seconds: int) -> Ranks:
    """Join the process that started this one."""
    store = dist.TCPStore("localhost", port, size, is_master=False, wait_for_workers=False)
    ranks = Ranks(rank, size, store, seconds)
    ranks.join()
    return ranks
