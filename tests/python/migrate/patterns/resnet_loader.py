"""A residual network behind a class, with synthetic batches and a compiled step."""

import json

import torch
import torch.nn as nn
import torch.optim as optim
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.utils.utils as xu
from torch_xla import runtime as xr


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


class TrainResNetBase:
    def __init__(self):
        torch.manual_seed(0)
        self.batch_size = 4
        self.num_steps = 6
        self.num_epochs = 1
        train_dataset_len = 24
        train_loader = xu.SampleGenerator(
            data=(torch.rand(self.batch_size, 3, 8, 8), torch.arange(self.batch_size)),
            sample_count=train_dataset_len // self.batch_size // xr.world_size(),
        )
        self.device = torch_xla.device()
        self.train_device_loader = pl.MpDeviceLoader(
            train_loader, self.device, loader_prefetch_size=8, device_prefetch_size=4
        )
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        ).to(self.device)
        self.optimizer = optim.SGD(self.model.parameters(), weight_decay=1e-4, lr=0.1)
        self.loss_fn = nn.CrossEntropyLoss()
        # Compile the step as one graph.
        self.compiled_step_fn = torch_xla.compile(
            self.step_fn, full_graph=True, name="resnet_step_fn"
        )

    def _train_update(self, step, loss, tracker, epoch):
        print(f"epoch: {epoch}, step: {step}, loss: {loss}, rate: {tracker.rate():.1f}")

    def run_optimizer(self):
        self.optimizer.step()

    def step_fn(self, data, target):
        self.optimizer.zero_grad()
        output = self.model(data)
        loss = self.loss_fn(output, target)
        loss.backward()
        self.run_optimizer()
        return loss

    def train_loop_fn(self, loader, epoch):
        tracker = xm.RateTracker()
        self.model.train()
        losses = []
        loader = iter(loader)
        for step in range(self.num_steps):
            data, target = next(loader)
            loss = self.compiled_step_fn(data, target)
            losses.append(loss)
            tracker.add(self.batch_size)
            if step % 2 == 0:
                xm.add_step_closure(self._train_update, args=(step, loss, tracker, epoch))
        return [loss.item() for loss in losses]

    def start_training(self):
        losses = []
        for epoch in range(1, self.num_epochs + 1):
            xm.master_print(f"Epoch {epoch} train begin")
            losses += self.train_loop_fn(self.train_device_loader, epoch)
        xm.wait_device_ops()
        return losses


if __name__ == "__main__":
    losses = TrainResNetBase().start_training()
    print("RESULT " + json.dumps({"losses": losses, "device": xm.xla_device_hw("xla:0")}))
