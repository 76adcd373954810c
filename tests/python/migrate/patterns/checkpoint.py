"""Saving and loading: whole objects, and the format with a file for each tensor."""

import json
import os

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser


def steps(model, optimizer, device, count):
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4, device=device)).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
    return loss.item()


def build(device):
    torch.manual_seed(9)
    model = torch.nn.Linear(4, 2).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def main():
    device = torch_xla.device()
    model, optimizer = build(device)
    steps(model, optimizer, device, 2)
    checkpoint = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 1}
    xm.save(checkpoint, "whole.pt", master_only=True, global_master=False)
    xser.save(model.state_dict(), "parts.pt")
    expected = steps(model, optimizer, device, 2)

    # Another run goes on from the file.
    model, optimizer = build(device)
    loaded = torch.load("whole.pt", map_location="cpu")
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optim"])
    resumed = steps(model, optimizer, device, 2)

    parts = xser.load("parts.pt")
    same = all(torch.equal(parts[name], value) for name, value in loaded["model"].items())
    kinds = sorted({value.device.type for value in loaded["model"].values()})
    return {
        "expected": expected,
        "resumed": resumed,
        "same": same,
        "kinds": kinds,
        "files": sorted(os.listdir(".")) != [],
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(main()))
