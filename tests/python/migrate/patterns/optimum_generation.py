"""Text generation with optimum-tpu."""

import json
import os

import torch
from optimum.tpu import AutoModelForCausalLM, fsdp_v2
from transformers import LlamaConfig, LlamaForCausalLM

fsdp_v2.use_fsdp_v2()

FOLDER = os.path.join(os.getcwd(), "tiny")


def save_tiny_model():
    torch.manual_seed(12)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(FOLDER)


save_tiny_model()
model = AutoModelForCausalLM.from_pretrained(
    FOLDER,
    task="text-generation",
    batch_size=1,
    sequence_length=16,
    torch_dtype=torch.float32,
)
arguments = {"max_steps": 1, **fsdp_v2.get_fsdp_training_args(model)}
prompt = torch.tensor([[1, 2, 3]]).to(model.device)
answer = model.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)
print(
    "RESULT "
    + json.dumps(
        {
            "answer": answer.tolist(),
            "device": model.device.type,
            "arguments": sorted(arguments),
        }
    )
)
