# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.distributed.spmd: tensors divided over a mesh of processes."""

from torch_tpu import compat

from torch_xla.distributed.spmd.xla_sharding import (  # noqa: F401
    Mesh,
    ShardingSpec,
    XLAShardedTensor,
    apply_xla_patch_to_nn_linear,
    get_1d_mesh,
    get_global_mesh,
    mark_sharding,
    set_global_mesh,
)

__getattr__ = compat.missing("torch_xla.distributed.spmd")
