"""A small classifier on one device, in the style of the oldest torch_xla examples."""

import argparse
import json

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
FLAGS = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, kernel_size=3)
        self.fc = nn.Linear(4 * 5 * 5, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        return F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1)


def pictures(count):
    # A bright corner tells the class.
    labels = torch.randint(0, 4, (count,))
    images = torch.rand(count, 1, 12, 12) * 0.3
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(label.item(), 2)
        image[0, row * 6 : row * 6 + 6, column * 6 : column * 6 + 6] += 1
    return DataLoader(TensorDataset(images, labels), batch_size=FLAGS.batch_size)


def train_mnist():
    torch.manual_seed(1)
    train_loader, test_loader = pictures(64), pictures(32)
    device = xm.xla_device()
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=FLAGS.lr, momentum=0.9)
    loss_fn = nn.NLLLoss()
    losses = []

    def report(step, loss, tracker):
        losses.append(loss.item())
        print(f"step {step} loss {loss.item():.4f} rate {tracker.rate():.1f}")

    def train_loop_fn(loader):
        tracker = xm.RateTracker()
        model.train()
        for step, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            output = model(data)
            loss = loss_fn(output, target)
            loss.backward()
            xm.optimizer_step(optimizer)  # there is one device: nothing to reduce
            tracker.add(FLAGS.batch_size)
            if step % 2 == 0:
                xm.add_step_closure(report, args=(step, loss, tracker))

    def test_loop_fn(loader):
        total, correct = 0, 0
        model.eval()
        for data, target in loader:
            pred = model(data).max(1, keepdim=True)[1]
            correct += pred.eq(target.view_as(pred)).sum()
            total += data.size()[0]
        return correct.item() / total

    for _ in range(FLAGS.epochs):
        train_loop_fn(pl.MpDeviceLoader(train_loader, device))
    # Wait for the last step before testing.
    xm.wait_device_ops()
    accuracy = test_loop_fn(pl.MpDeviceLoader(test_loader, device))
    xm.save(model.state_dict(), "mnist.pt")
    return losses, accuracy


if __name__ == "__main__":
    losses, accuracy = train_mnist()
    saved = torch.load("mnist.pt")
    result = {"first": losses[0], "last": losses[-1], "accuracy": accuracy, "saved": len(saved)}
    print("RESULT " + json.dumps(result))
