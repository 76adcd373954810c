"""Several small batches for each step of the optimizer."""

import json

import torch
import torch_xla as tx
import torch_xla.core.xla_model as model_api
from torch import nn
from torch_xla.core.xla_model import mark_step as end_of_step

ACCUMULATE = 4


def main():
    torch.manual_seed(11)
    device = tx.device()
    model = nn.Linear(5, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    batches = [torch.randn(2, 5) for _ in range(12)]
    running = torch.zeros((), device=device)

    for number, batch in enumerate(batches, 1):
        loss = model(batch.to(device)).square().mean() / ACCUMULATE
        loss.backward()
        running += loss.detach()
        if number % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            model_api.optimizer_step(optimizer, barrier=True, optimizer_args={})
            scheduler.step()
            optimizer.zero_grad()
        else:
            # Without this the graph would grow over all batches.
            end_of_step()

    tx.sync(wait=True)
    return running.item(), model.weight.sum().item()


if __name__ == "__main__":
    total, weight = main()
    print("RESULT " + json.dumps({"total": total, "weight": weight}))
