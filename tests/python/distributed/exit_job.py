# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Ends right after a collective, while a thread of Gloo still drops its many tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("tpu_dist")
    tensors = [torch.ones(1) for _ in range(5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[-1].item() == dist.get_world_size()


if __name__ == "__main__":
    main()
