# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What a training script needs beside PyTorch, the same in one process and in many.

Every function works in a plain ``python script.py``, where there is one process and nothing to
exchange, in the processes that `launch` starts, and under ``torchrun``. `torus.migrate` rewrites
scripts for torch_xla to these names, and `torch_tpu.compat` keeps torch_xla's own names on top of
them.
"""

from __future__ import annotations

from torch_tpu.training.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    broadcast_parameters,
    gather,
    optimizer_step,
    reduce_gradients,
    reduce_scatter,
)
from torch_tpu.training.data import DeviceLoader, RateTracker, save, to_device
from torch_tpu.training.sharding import (
    ShardingSpec,
    make_mesh,
    placements_of,
    replicate_unmarked,
    shard,
    shard_parameters,
    whole,
)
from torch_tpu.training.workers import (
    SerialExecutor,
    barrier,
    init,
    is_main,
    launch,
    local_rank,
    local_world_size,
    node_rank,
    print_main,
    rank,
    world_size,
)

__all__ = [
    "DeviceLoader",
    "RateTracker",
    "SerialExecutor",
    "ShardingSpec",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "gather",
    "init",
    "is_main",
    "launch",
    "local_rank",
    "local_world_size",
    "make_mesh",
    "node_rank",
    "optimizer_step",
    "placements_of",
    "print_main",
    "rank",
    "reduce_gradients",
    "reduce_scatter",
    "replicate_unmarked",
    "save",
    "shard",
    "shard_parameters",
    "to_device",
    "whole",
    "world_size",
]
