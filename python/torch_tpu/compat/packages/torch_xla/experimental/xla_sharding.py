# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The place where torch_xla.distributed.spmd.xla_sharding used to be."""

from torch_xla.distributed.spmd.xla_sharding import *  # noqa: F403
