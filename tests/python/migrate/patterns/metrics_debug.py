"""Looking for recompilations and fallbacks with torch_xla's counters."""

import json

import torch
import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
from torch_xla.core import xla_model as xm

device = xm.xla_device()
weight = torch.eye(4).to(device)

# Warm up: the first step compiles.
value = torch.ones(4, 4, device=device) @ weight
torch_xla.sync(wait=True)
print(met.metrics_report())
compiled = met.metric_data("CompileTime")[0]

met.clear_all()
for step in range(3):
    with xp.StepTrace("train_loop", step_num=step):
        with xp.Trace("forward"):
            value = value @ weight
        xm.mark_step()
    value.cpu()

print(met.short_metrics_report())
runs = met.metric_data("ExecuteTime")[0]
reads = met.metric_data("TransferFromDeviceTime")[0]
fallbacks = met.executed_fallback_ops()
names = met.counter_names()
result = {
    "compiled": compiled >= 0,
    "runs": runs,
    "reads": reads,
    "fallbacks": len(fallbacks),
    "names": bool(names),
    "sine": met.counter_value("aten::sin") or 0,
    "sum": value.sum().item(),
}
print("RESULT " + json.dumps(result))
