# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The table of what becomes of each name: plain replacements and advice.

Names are canonical, see `torus.migrate.names`. What depends on a call's arguments is in
`torus.migrate.calls`.
"""

from __future__ import annotations

_PLATFORM = "torch_tpu.platform.current().name.upper()"

# A name, wherever it stands, becomes an expression.
NAMES = {
    "torch_xla.device_count": "torch.tpu.device_count",
    "torch_xla.manual_seed": "torch.tpu.manual_seed",
    "torch_xla.__version__": "torch_tpu.__version__",
    "xr.is_bf16_supported": "torch.tpu.is_bf16_supported",
    "xr.is_spmd": "torch.distributed.is_initialized",
    "xr.world_size": "training.world_size",
    "xr.global_device_count": "training.world_size",
    "xr.global_runtime_device_count": "training.world_size",
    "xr.process_count": "training.world_size",
    "xr.global_ordinal": "training.rank",
    "xr.process_index": "training.rank",
    "xr.local_ordinal": "training.local_rank",
    "xr.local_process_count": "training.local_world_size",
    "xr.local_device_count": "training.local_world_size",
    "xr.host_index": "training.node_rank",
    "xr.addressable_device_count": "torch.tpu.device_count",
    "xr.addressable_runtime_device_count": "torch.tpu.device_count",
    "xm.get_ordinal": "training.rank",
    "xm.get_local_ordinal": "training.local_rank",
    "xm.xrt_world_size": "training.world_size",
    "xm.xla_device_kind": "torch.tpu.get_device_name",
    "xm.RateTracker": "training.RateTracker",
    "xm.REDUCE_SUM": '"sum"',
    "xm.REDUCE_MUL": '"mul"',
    "xm.REDUCE_AND": '"and"',
    "xm.REDUCE_OR": '"or"',
    "xm.REDUCE_MIN": '"min"',
    "xm.REDUCE_MAX": '"max"',
    "xmp.MpSerialExecutor": "training.SerialExecutor",
    "pl.MpDeviceLoader": "training.DeviceLoader",
    "xs.Mesh": "torch.distributed.device_mesh.DeviceMesh",
    "xs.ShardingSpec": "training.ShardingSpec",
    "xs.XLAShardedTensor": "torch.distributed.tensor.DTensor",
    "syncfree.Adam": "torch.optim.Adam",
    "syncfree.AdamW": "torch.optim.AdamW",
    "syncfree.SGD": "torch.optim.SGD",
    "amp.syncfree.Adam": "torch.optim.Adam",
    "amp.syncfree.AdamW": "torch.optim.AdamW",
    "amp.syncfree.SGD": "torch.optim.SGD",
    "met.clear_all": "torch.tpu.reset_metrics",
    "met.clear_counters": "torch.tpu.reset_metrics",
    "met.clear_metrics": "torch.tpu.reset_metrics",
    "torch_xla.utils.checkpoint.checkpoint": "torch.utils.checkpoint.checkpoint",
    "optimum.tpu.AutoModelForCausalLM": "AutoModelForCausalLM",
    "optimum.tpu.TpuModelForCausalLM": "AutoModelForCausalLM",
    "optimum.tpu.static_cache_xla.StaticCacheXla": "StaticCache",
    "transformers.is_torch_xla_available": "is_torch_tpu_available",
    "transformers.utils.is_torch_xla_available": "is_torch_tpu_available",
    "transformers.utils.import_utils.is_torch_xla_available": "is_torch_tpu_available",
}

# Imports that a replacement above uses beside torch, torch_tpu and training.
NAME_IMPORTS = {
    "AutoModelForCausalLM": "from transformers import AutoModelForCausalLM",
    "StaticCache": "from transformers import StaticCache",
    "is_torch_tpu_available": "from transformers.utils import is_torch_tpu_available",
    "torch.utils.checkpoint.checkpoint": "import torch.utils.checkpoint",
    "torch.distributed.device_mesh.DeviceMesh": "import torch.distributed.device_mesh",
    "torch.distributed.tensor.DTensor": "import torch.distributed.tensor",
}

# A call with any arguments becomes an expression.
EXPRESSIONS = {
    "xm.xla_device_hw": _PLATFORM,
    "xr.device_type": _PLATFORM,
    "xr.get_num_cached_compilation_graph": 'torch.tpu.metrics()["compilations"]',
    "met.metrics_report": "str(torch.tpu.metrics())",
    "met.short_metrics_report": "str(torch.tpu.metrics())",
    "met.counter_names": "list(torch.tpu.metrics())",
    "met.metric_names": "list(torch.tpu.metrics())",
    "met.executed_fallback_ops": 'list(torch.tpu.metrics()["fallbacks"])',
    "xm.wait_device_ops": "torch.tpu.synchronize()",
    "xm.unlazy": "torch.tpu.synchronize()",
    "torch_xla.real_devices": "[torch.tpu.get_device_name(i) for i in "
    "range(torch.tpu.device_count())]",
    "xm.xla_real_devices": "[torch.tpu.get_device_name(i) for i in "
    "range(torch.tpu.device_count())]",
    "xm.get_xla_supported_devices": '[f"tpu:{i}" for i in range(torch.tpu.device_count())]',
    "torch_xla.devices": '[torch.device("tpu", i) for i in range(torch.tpu.device_count())]',
    "xr.use_spmd": "training.replicate_unmarked()",
}

# Counters of torch_xla and where `torch.tpu.metrics` has them.
COUNTERS = {
    "CompileTime": "compilations",
    "UncachedCompile": "compilations",
    "CachedCompile": "cache_hits",
    "ExecuteTime": "launches",
    "MarkStep": "windows",
    "TransferToDeviceTime": "transfers_to_device",
    "TransferFromDeviceTime": "transfers_to_host",
}

# Statements that are no longer needed, with a remark where someone might look for them.
NEEDLESS = {
    "xm.optimization_barrier_": "",
    "xm.set_replication": "",
    "xr.set_device_type": "the plugin is chosen by TORUS_PLATFORM (auto, cpu, tpu), set before "
    "`import torch`",
    "experimental.eager_mode": "PyTorch is eager; torch.tpu.set_eager_mode chooses between fused "
    "and strict",
    "optimum.tpu.use_fsdp_v2": "for several devices start with torchrun and apply "
    "torch.distributed.fsdp.fully_shard to the model",
    "optimum.tpu.fsdp_v2.use_fsdp_v2": "for several devices start with torchrun and apply "
    "torch.distributed.fsdp.fully_shard to the model",
}

# What to know about calls that were migrated.
REMARKS = {
    "xm.add_step_closure": "called at once, and waits for the tensors it reads: call it every few "
    "steps",
    "xser.load": "files that torch_xla's serialization wrote are read with "
    "`torch_tpu.compat` only; save them again with training.save",
    "optimum.tpu.fsdp_v2.get_fsdp_training_args": "one device; for several start with torchrun "
    "and apply torch.distributed.fsdp.fully_shard",
    "xs.Mesh": "one process per device: start with torchrun; read what is divided with "
    "training.whole(x)",
}

_EXPORT = "use torch.export for the program, torch.tpu.explain() to see what compiles"
_PROFILER = "use torch.profiler.profile() around the steps to look at"
_FSDP = (
    "call torch.distributed.fsdp.fully_shard on each block, then on the model, before the "
    "optimizer is made"
)
_CHECKPOINT = "use torch.distributed.checkpoint.save, async_save and load with the state dicts"
_PALLAS = "there is no counterpart; attention is torch.nn.functional.scaled_dot_product_attention"
_SERVING = "generation is the ordinary `generate` of Transformers on a model moved to 'tpu'"

# What to do by hand, by the longest prefix that fits.
REMEDIES = {
    "xm.collective_permute": "use torch.distributed.batch_isend_irecv",
    "xm.send": "use torch.distributed.send",
    "xm.recv": "use torch.distributed.recv",
    "xm.do_on_ordinals": "call the function under `if training.rank() in ...`, then "
    "training.barrier()",
    "xm.all_gather_bucketized": "use training.all_gather for each tensor",
    "xm.reduce_scatter_bucketized": "use training.reduce_scatter for each tensor",
    "xm.get_memory_info": "use torch.tpu.mem_get_info() (free and total bytes) or "
    "torch.tpu.memory_stats()",
    "xm.get_stablehlo": _EXPORT,
    "xm.check_view_sharing": "views share storage here as on the CPU: drop the check",
    "xm.get_rng_state": "use torch.tpu.get_rng_state(), a tensor, or torch.tpu.initial_seed()",
    "xf.": "use torch.distributed.nn.functional, whose collectives have gradients, and "
    "torch.nn.SyncBatchNorm",
    "xu.": "write it with the standard library",
    "xr.get_master_ip": 'use os.environ["MASTER_ADDR"], which torchrun sets',
    "xs.HybridMesh": "use training.make_mesh with the product of both shapes",
    "xs.set_global_mesh": "pass the mesh along",
    "xs.get_global_mesh": "pass the mesh along",
    "xs.xla_distribute_module": "use torch.distributed.tensor.distribute_module",
    "xs.clear_sharding": "use DTensor.full_tensor()",
    "xs.enable_manual_sharding": "use DTensor.to_local() and DTensor.from_local()",
    "xs.disable_manual_sharding": "use DTensor.to_local() and DTensor.from_local()",
    "xs.": "use torch.distributed.tensor (DTensor)",
    "xp.": _PROFILER,
    "met.": "read torch.tpu.metrics(), a dict of counters",
    "torch_xla.stablehlo": _EXPORT,
    "torch_xla.tf_saved_model_integration": _EXPORT,
    "torch_xla.distributed.fsdp": _FSDP,
    "experimental.spmd_fully_sharded_data_parallel": _FSDP,
    "torch_xla.distributed.zero_redundancy_optimizer": "use "
    "torch.distributed.optim.ZeroRedundancyOptimizer or fully_shard",
    "torch_xla.distributed.data_parallel": "use training.launch and training.DeviceLoader",
    "experimental.distributed_checkpoint": _CHECKPOINT,
    "experimental.custom_kernel": _PALLAS,
    "experimental.pallas_kernels": _PALLAS,
    "experimental.scan": "use torch.compile, or call the layers one after the other: equal layers "
    "share one program",
    "experimental.fori_loop": "use torch.while_loop in a compiled function, or a Python loop",
    "experimental.gradient_accumulation": "accumulate in a Python loop over backward()",
    "experimental.assume_pure": "drop it",
    "torch_xla.test": "print the figures with training.print_main",
    "torch_xla._XLAC": "this is torch_xla's inside; find the public function it stands for",
    "torch_xla._internal": "this is torch_xla's inside; find the public function it stands for",
    "torch_xla.core.xla_env_vars": "see the table of environment variables in docs/migrating.md",
    "torch_xla.core.xla_builder": "write the operation with PyTorch's operators",
    "optimum.tpu.generation": _SERVING,
    "optimum.tpu.model": _SERVING,
    "optimum.tpu.distributed_model": _SERVING,
    "optimum.tpu.xla_model_parallel": "use torch.distributed.tensor.parallel.parallelize_module",
    "optimum.tpu.modeling_": "use the class of the same name in Transformers",
}

DEFAULT_REMEDY = "no rule for it; docs/migrating.md has the table of equivalents"

ENVIRONMENT_NAMES = {
    "XLA_PERSISTENT_CACHE_PATH": "TORUS_CACHE_DIR",
}

# (variable, value) becomes (variable, value); None removes the statement.
ENVIRONMENT_VALUES: dict[tuple[str, str], tuple[str, str] | None] = {
    ("PJRT_DEVICE", "TPU"): None,
    ("PJRT_DEVICE", "CPU"): ("TORUS_PLATFORM", "cpu"),
    ("PJRT_DEVICE", "CUDA"): ("TORUS_PLATFORM", "cuda"),
    ("PJRT_DEVICE", "GPU"): ("TORUS_PLATFORM", "cuda"),
    ("XLA_USE_SPMD", "1"): None,
    ("XLA_SYNC_WAIT", "1"): ("TORUS_EAGER_MODE", "debug"),
    ("XLA_USE_EAGER_DEBUG_MODE", "1"): ("TORUS_EAGER_MODE", "debug"),
    ("PT_XLA_DEBUG", "1"): ("TORUS_LOG", "compile"),
    ("PT_XLA_DEBUG_LEVEL", "1"): ("TORUS_LOG", "compile"),
    ("PT_XLA_DEBUG_LEVEL", "2"): ("TORUS_LOG", "compile,window"),
    ("XLA_IR_DEBUG", "1"): ("TORUS_LOG", "lines"),
    ("XLA_HLO_DEBUG", "1"): ("TORUS_LOG", "lines"),
}

_BF16 = "compute in bfloat16 with model.to(torch.bfloat16) or torch.autocast('tpu')"
ENVIRONMENT_REMEDIES = {
    "PJRT_DEVICE": "use TORUS_PLATFORM (auto, cpu, tpu, cuda, or a plugin's path)",
    "PJRT_SELECT_DEFAULT_DEVICE": "drop it; see TORUS_PLATFORM",
    "XRT_TPU_CONFIG": "drop it",
    "XLA_USE_BF16": _BF16,
    "XLA_DOWNCAST_BF16": _BF16,
    "XLA_USE_FP16": _BF16,
    "XLA_USE_SPMD": "drop it",
    "XLA_SYNC_WAIT": "use TORUS_EAGER_MODE=debug",
    "XLA_USE_EAGER_DEBUG_MODE": "use TORUS_EAGER_MODE=debug",
    "PT_XLA_DEBUG": "use TORUS_LOG=compile, or torch.tpu.explain()",
    "PT_XLA_DEBUG_LEVEL": "use TORUS_LOG=compile, or torch.tpu.explain()",
    "PT_XLA_DEBUG_FILE": "use TORUS_LOG_FILE",
    "XLA_IR_DEBUG": "use TORUS_LOG=lines",
    "XLA_HLO_DEBUG": "use TORUS_LOG=lines",
    "XLA_SAVE_TENSORS_FILE": "use TORUS_LOG=window",
    "XLA_PERSISTENT_CACHE_PATH": "use TORUS_CACHE_DIR; the cache is on by default",
    "XLA_PERSISTENT_CACHE_READ_ONLY": "drop it",
}


def remedy_for(name: str) -> str:
    """Return what to do by hand about a canonical name."""
    fitting = [prefix for prefix in REMEDIES if name.startswith(prefix)]
    return REMEDIES[max(fitting, key=len)] if fitting else DEFAULT_REMEDY
