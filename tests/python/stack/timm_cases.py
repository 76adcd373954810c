# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Models of timm on both devices; prints what came out as JSON.

timm needs torchvision, and the wheel of torchvision on PyPI holds operators for CUDA that a PyTorch
for hosts cannot load. Its Python part imports once the operators that it annotates are declared.
"""

from __future__ import annotations

import copy
import json
import sys

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm
import timm.loss
import timm.optim
import timm.scheduler

MODELS = {
    "resnet10t": {"num_classes": 5},
    "vit_tiny_patch16_224": {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 4},
    "convnext_atto": {"depths": (1,) * 4, "dims": (8, 8, 16, 16), "num_classes": 5},
}


def size_of(options: dict[str, object]) -> int:
    return int(options.get("img_size", 32))


def step(model: torch.nn.Module, device: str, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, size, size, generator=generator).to(device)
    own = copy.deepcopy(model).to(device)
    with torch.no_grad():
        scores = own.eval()(inputs)
    own.train()
    optimizer = timm.optim.create_optimizer_v2(own, opt="adamw", lr=1e-3)
    schedule = timm.scheduler.CosineLRScheduler(optimizer, t_initial=4)
    criterion = timm.loss.LabelSmoothingCrossEntropy()
    labels = torch.tensor([1, 3], device=device)
    losses = []
    for epoch in range(2):
        loss = criterion(own(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(epoch)
        losses.append(loss.detach().cpu())
    return [scores.cpu(), torch.stack(losses)]


def compare(name: str) -> dict[str, float]:
    options = MODELS[name]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.tpu.reset_metrics()
    expected, actual = (step(model, device, size_of(options)) for device in ("cpu", "tpu"))
    differences = [
        ((a - e).abs().max() / e.abs().max()).item() for a, e in zip(actual, expected, strict=True)
    ]
    return {
        "scores": differences[0],
        "losses": differences[1],
        "fallbacks": len(torch.tpu.metrics()["fallbacks"]),
    }


if __name__ == "__main__":
    print(json.dumps({name: compare(name) for name in sys.argv[1:] or MODELS}))
