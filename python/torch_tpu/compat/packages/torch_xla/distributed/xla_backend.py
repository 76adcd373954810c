# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Lets ``init_process_group("xla", init_method="xla://")`` create the group of device "tpu"."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import rendezvous
from torch_tpu import distributed, training


def _meet(url: str, **kwargs: object) -> object:
    """Take store, rank and size as the environment has them; alone without any."""
    del url, kwargs
    if training.world_size() == 1:
        yield dist.HashStore(), 0, 1
        return
    yield next(rendezvous("env://"))


if "XLA" not in dist.Backend._plugins:
    dist.Backend.register_backend(
        "xla", distributed._create, extended_api=True, devices=["tpu", "cpu"]
    )
    dist.register_rendezvous_handler("xla", _meet)
