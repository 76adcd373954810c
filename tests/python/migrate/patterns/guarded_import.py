"""A program that runs with and without torch_xla, written for its older releases."""

import json
import os

import torch

try:
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.parallel_loader as pl
except ImportError:
    print("torch_xla is missing")
    raise

os.environ["XLA_PERSISTENT_CACHE_PATH"] = os.path.join(os.getcwd(), "programs")


def train(device):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.full((2, 3), float(i)) for i in range(3)]
    para_loader = pl.ParallelLoader(batches, [device])
    for batch in para_loader.per_device_loader(device):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        if xm.xrt_world_size() > 1:
            xm.reduce_gradients(optimizer)
        optimizer.step()
    if os.environ.get("DEBUG_SYNC"):
        xm.mark_step()
    return loss


def main():
    device = xm.xla_device(0)
    loss = train(device)
    # Only the first process speaks.
    if xm.get_ordinal() == 0:
        print(
            "RESULT "
            + json.dumps(
                {
                    "loss": loss.item(),
                    "devices": len(xm.get_xla_supported_devices()),
                    "kind": xm.xla_device_hw(device),
                }
            )
        )


if __name__ == "__main__":
    main()
