"""Fine-tuning a causal language model of Transformers by hand."""

import json
import os

os.environ["PJRT_DEVICE"] = "TPU"
os.environ.setdefault("XLA_USE_SPMD", "1")

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup


def make_model():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def main():
    torch.manual_seed(4)
    device = xm.xla_device()
    model = make_model().to(device)
    model.gradient_checkpointing_enable()
    texts = [torch.arange(start, start + 16) % 64 for start in range(0, 64, 4)]
    rows = [{"input_ids": text, "labels": text} for text in texts]
    loader = pl.MpDeviceLoader(DataLoader(rows, batch_size=4), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 1, 2 * len(loader))
    model.train()
    losses = []
    for _ in range(2):
        for batch in loader:
            outputs = model(**batch)
            outputs.loss.backward()
            xm.optimizer_step(optimizer)
            scheduler.step()
            optimizer.zero_grad()
            losses.append(outputs.loss.detach())
            xm.mark_step()
    model.eval()
    prompt = texts[0][:4].unsqueeze(0).to(device)
    answer = model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
    xm.save(model.state_dict(), "finetuned.pt")
    losses = torch.stack(losses).cpu().tolist()
    return {"first": losses[0], "last": losses[-1], "length": answer.shape[1]}


if __name__ == "__main__":
    print("RESULT " + json.dumps(main()))
