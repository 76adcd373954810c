# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch.tpu and torch.accelerator behave as PyTorch and its libraries expect of a device."""

from __future__ import annotations

import copy
import io
import pickle
import re
import threading

import pytest
import torch
from torch.utils import checkpoint

NAMES = """
    Event Stream StreamContext current_device current_stream default_generators default_stream
    device device_count device_of empty_cache get_amp_supported_dtype get_device_capability
    get_device_name get_device_properties get_rng_state get_rng_state_all init initial_seed
    is_available is_bf16_supported is_initialized manual_seed manual_seed_all max_memory_allocated
    max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats memory_summary
    random reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all set_device
    set_rng_state set_rng_state_all set_stream stream synchronize
    EagerMode eager_mode set_eager_mode Precision precision metrics reset_metrics
    _get_cache_stats _initialized _is_in_bad_fork _lazy_init _utils
"""


def test_names_that_libraries_use() -> None:
    assert [name for name in NAMES.split() if not hasattr(torch.tpu, name)] == []
    assert [name for name in torch.tpu.__all__ if not hasattr(torch.tpu, name)] == []
    with pytest.raises(AttributeError, match=r"torch\.tpu"):
        _ = torch.tpu.no_such_name


def test_module_is_registered() -> None:
    import torch.backends.tpu
    import torch.tpu.random
    import torch_tpu

    torch_tpu._autoload()
    torch_tpu._autoload()
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch.tpu.random.get_rng_state is torch.tpu.get_rng_state
    assert torch.backends.tpu.is_built()
    assert torch.backends.tpu.is_available()
    assert torch._utils._get_available_device_type() == "tpu"


def test_generated_methods() -> None:
    moved = torch.ones(2).tpu()
    assert moved.is_tpu
    assert not torch.ones(2).is_tpu
    assert torch.ones(2).tpu(0).device == torch.device("tpu:0")
    assert next(torch.nn.Linear(2, 2).tpu().parameters()).is_tpu
    assert moved.untyped_storage().is_tpu
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.tpu().is_tpu


# ---- devices ----


def test_current_device() -> None:
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() >= 1
    with torch.tpu.device("tpu:0"), torch.tpu.device(None), torch.tpu.device(-1):
        assert torch.tpu.current_device() == 0
    with torch.tpu.device_of(torch.ones(1, device="tpu")), torch.tpu.device_of(torch.ones(1)):
        assert torch.tpu.current_device() == 0
    for same in (0, "tpu", "tpu:0", torch.device("tpu", 0), -1):
        torch.tpu.set_device(same)
        assert torch.tpu.current_device() == 0


@pytest.mark.parametrize(
    ("device", "error"), [("cpu", ValueError), (None, ValueError), (1.5, TypeError)]
)
def test_set_device_refuses(device: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        torch.tpu.set_device(device)


def test_missing_device_raises() -> None:
    count = torch.tpu.device_count()
    with pytest.raises(RuntimeError, match=f"tpu:{count}"):
        torch.tpu.set_device(count)
    with pytest.raises(RuntimeError):
        torch.ones(1, device=f"tpu:{count}")


def test_properties() -> None:
    properties = torch.tpu.get_device_properties("tpu:0")
    assert properties.name == torch.tpu.get_device_name() == torch.tpu.get_device_name(0)
    assert properties.total_memory > 0
    assert properties.multi_processor_count == 1
    assert (properties.major, properties.minor) == torch.tpu.get_device_capability()
    if properties.platform == "cpu":
        assert properties.name.startswith("Torus CPU (")
    else:
        assert re.match(r"TPU v\d", properties.name)
    assert torch.tpu.is_bf16_supported()
    assert torch._utils._get_devices_properties([0]) == [properties]


def test_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.current_accelerator(check_available=True).type == "tpu"
    assert torch.accelerator.device_count() == torch.tpu.device_count()
    torch.accelerator.set_device_index("tpu:0")
    torch.accelerator.set_device_index(torch.device("tpu:0"))
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        torch.ones(2, device="tpu")
    torch.accelerator.synchronize()
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_autocast_defaults_to_bfloat16() -> None:
    assert torch.amp.is_autocast_available("tpu")
    left = torch.ones(2, 2, device="tpu")
    with torch.autocast("tpu"):
        assert (left @ left).dtype == torch.bfloat16
    with torch.autocast("tpu", dtype=torch.float16):
        assert (left @ left).dtype == torch.float16


# ---- streams and events ----


def test_streams() -> None:
    default = torch.tpu.default_stream()
    assert torch.tpu.current_stream() == default
    assert torch.accelerator.current_stream() == default
    other = torch.tpu.Stream()
    assert isinstance(other, torch.Stream)
    assert other.device == torch.device("tpu:0")
    with torch.tpu.stream(other):
        assert torch.tpu.current_stream() == other
        result = torch.ones(3, device="tpu") + 1
    with torch.tpu.stream(None):
        assert torch.tpu.current_stream() == default
    default.wait_stream(other)
    other.synchronize()
    assert other.query()
    assert result.tolist() == [2, 2, 2]
    torch.tpu.set_stream(other)
    torch.accelerator.set_stream(default)
    assert torch.tpu.current_stream() == default
    assert torch.Stream(device="tpu").device.type == "tpu"
    result.record_stream(other)


def test_events() -> None:
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    assert isinstance(start, torch.Event)
    start.record()
    (torch.ones(8, 8, device="tpu") @ torch.ones(8, 8, device="tpu")).sum()
    torch.tpu.current_stream().record_event(end)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    torch.tpu.current_stream().wait_event(end)
    end.wait()
    torch.Event("tpu").record()


# ---- memory ----


def test_memory_statistics() -> None:
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    held = torch.ones(256, 1024, device="tpu") * 2
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() >= before + held.nbytes
    assert torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated()
    assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated()
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    nested = torch.tpu.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"].keys() >= {"current", "peak", "allocated", "freed"}
    del held
    torch.tpu.synchronize()
    torch.tpu.empty_cache()
    assert torch.tpu.memory_allocated() <= before
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated()
    torch.tpu.reset_accumulated_memory_stats()


def test_memory_info_and_summary() -> None:
    torch.tpu.init()
    free, total = torch.tpu.mem_get_info()
    assert 0 <= free <= total
    assert torch.accelerator.get_memory_info()[1] == total
    summary = torch.tpu.memory_summary()
    assert summary.startswith("Memory of tpu:0")
    assert "Allocated memory" in summary
    assert len(torch.tpu.memory_summary(abbreviated=True)) < len(summary)


# ---- random numbers ----


def draw() -> list[float]:
    return torch.rand(4, device="tpu").tolist()


def test_seed_decides(mode: str) -> None:
    torch.manual_seed(7)
    first, second = draw(), draw()
    assert first != second
    for seed in (torch.manual_seed, torch.tpu.manual_seed, torch.tpu.manual_seed_all):
        seed(7)
        assert draw() == first
    assert torch.tpu.initial_seed() == 7
    torch.tpu.seed()
    assert draw() != first
    torch.tpu.seed_all()


def test_seed_limits() -> None:
    torch.tpu.manual_seed_all(-1)
    torch.tpu.manual_seed_all(2**64 - 1)
    with pytest.raises(RuntimeError, match="out of range"):
        torch.tpu.manual_seed_all(2**64)


def test_rng_state() -> None:
    state = torch.tpu.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    first = draw()
    torch.tpu.set_rng_state(state, "tpu:0")
    assert draw() == first
    states = torch.tpu.get_rng_state_all()
    assert len(states) == torch.tpu.device_count()
    expected = draw()
    torch.tpu.set_rng_state_all(states)
    assert draw() == expected


def test_generators() -> None:
    default = torch.tpu.default_generators[0]
    assert len(torch.tpu.default_generators) == torch.tpu.device_count()
    assert default.device == torch.device("tpu:0")
    with pytest.raises(IndexError):
        _ = torch.tpu.default_generators[torch.tpu.device_count()]
    generator = torch.Generator("tpu").manual_seed(3)
    first = torch.randn(4, device="tpu", generator=generator).tolist()
    assert torch.randn(4, device="tpu", generator=generator).tolist() != first
    generator.manual_seed(3)
    assert torch.randn(4, device="tpu", generator=generator).tolist() == first


def test_fork_rng() -> None:
    torch.manual_seed(1)
    expected = draw()
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.tpu.manual_seed(5)
        draw()
    assert draw() == expected


SEED_FIRST = """
import torch
torch.manual_seed(11)
assert not torch.tpu.is_initialized()
print(torch.rand(3, device="tpu").tolist())
torch.manual_seed(11)
print(torch.rand(3, device="tpu").tolist())
"""


def test_seed_before_first_use(run_python) -> None:
    lines = run_python(SEED_FIRST).stdout.splitlines()
    assert lines[0] == lines[1]
    assert run_python(SEED_FIRST).stdout.splitlines() == lines


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_repeats_dropout(mode: str, use_reentrant: bool) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5)).tpu()
    x = torch.ones(4, 16, device="tpu", requires_grad=True)

    def gradients(run) -> list[torch.Tensor]:
        torch.manual_seed(3)
        leaves = [x, *layer.parameters()]
        run(x).square().sum().backward()
        grads = [leaf.grad.cpu() for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return grads

    def recomputed(value: torch.Tensor) -> torch.Tensor:
        return checkpoint.checkpoint(layer, value, use_reentrant=use_reentrant)

    assert torch.tpu._initialized
    for plain, repeated in zip(gradients(layer), gradients(recomputed), strict=True):
        torch.testing.assert_close(plain, repeated)


# ---- saving, copying ----


@pytest.mark.parametrize("map_location", [None, "cpu", "tpu", "tpu:0", torch.device("tpu")])
def test_save_and_load(map_location: object) -> None:
    base = torch.arange(12.0, device="tpu").reshape(3, 4)
    saved = {"base": base, "view": base[1], "half": base.bfloat16(), "flag": base > 3}
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location, weights_only=True)
    expected = "cpu" if map_location == "cpu" else "tpu"
    for name, tensor in saved.items():
        assert loaded[name].device.type == expected
        assert torch.equal(loaded[name].cpu(), tensor.cpu())
    loaded["base"][1] = -1
    assert loaded["view"].tolist() == [-1, -1, -1, -1]


def test_saved_file_loads_without_the_device(tmp_path, run_python) -> None:
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2).tpu().state_dict(), path)
    code = f"import torch; print(sorted(torch.load({str(path)!r}, map_location='cpu')))"
    output = run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout
    assert output == "['bias', 'weight']\n"


def test_pickle_and_deepcopy() -> None:
    tensor = torch.nn.Parameter(torch.arange(6.0, device="tpu").reshape(2, 3))
    for copied in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        assert copied.device == tensor.device
        assert copied.requires_grad
        assert torch.equal(copied.cpu(), tensor.cpu())
    copied = copy.deepcopy(tensor.detach())
    copied.zero_()
    assert tensor.sum().item() == 15


def test_deepcopy_keeps_ties() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    model = copy.deepcopy(model.to("tpu"))
    assert model[0].weight is model[1].weight
    assert model[0].weight.is_tpu


def test_safetensors(tmp_path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "tensors.safetensors"
    tensors = {"a": torch.arange(6.0, device="tpu").reshape(2, 3)}
    safetensors.save_file(tensors, path)
    loaded = safetensors.load_file(path)
    assert torch.equal(loaded["a"].to("tpu").cpu(), tensors["a"].cpu())


# ---- printing ----

PRINTED = {
    "vector": torch.arange(5.0) / 3,
    "matrix": torch.arange(12).reshape(3, 4),
    "scalar": torch.tensor(2.5),
    "summarised": torch.arange(4000.0).reshape(40, 100),
    "bool": torch.tensor([True, False]),
    "half": torch.tensor([1.0, 1e-3], dtype=torch.float16),
    "bfloat16": torch.tensor([float("inf"), float("nan"), -1], dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, -3.5j]),
    "empty": torch.empty(0, 3),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "expanded": torch.tensor([1.0, 2.0])[:, None].expand(2, 3),
}


@pytest.mark.parametrize("name", PRINTED)
def test_repr_is_that_of_the_cpu(name: str) -> None:
    tensor = PRINTED[name]
    text = repr(tensor.to("tpu"))
    assert "device='tpu:0'" in text
    assert re.sub(r",\s+device='tpu:0'", "", text) == repr(tensor)


def test_repr_of_autograd_and_subclasses() -> None:
    leaf = torch.ones(2, device="tpu", requires_grad=True)
    assert repr(leaf) == "tensor([1., 1.], device='tpu:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(leaf * 2)
    assert repr(torch.nn.Parameter(leaf.detach())).startswith("Parameter containing:\n")

    class Named(torch.Tensor):
        pass

    assert repr(leaf.detach().as_subclass(Named)) == "Named([1., 1.], device='tpu:0')"
    assert f"{leaf.sum():.1f}" == "2.0"


def test_repr_costs_one_transfer(mode: str) -> None:
    tensor = torch.arange(2000.0, device="tpu") * 2
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    repr(tensor)
    counters = torch.tpu.metrics()
    assert counters["transfers_to_host"] == 1
    assert counters["compilations"] == 0
    assert counters["launches"] == 0


# ---- modes, metrics, precision ----


def test_eager_mode_for_the_process() -> None:
    modes = torch.tpu.EagerMode
    previous = torch.tpu.eager_mode
    try:
        torch.tpu.eager_mode = modes.STRICT
        assert torch.tpu.eager_mode is modes.DEFER_NEVER
        torch.tpu.set_eager_mode("debug")
        assert torch.tpu.eager_mode is modes.DEFER_NEVER_AND_LAUNCH_BLOCKING
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.eager_mode))
        thread.start()
        thread.join()
        assert seen == [modes.DEBUG]
    finally:
        torch.tpu.set_eager_mode(previous)
    with pytest.raises(ValueError, match="fused"):
        torch.tpu.set_eager_mode("quick")


def test_eager_mode_for_a_block() -> None:
    modes = torch.tpu.EagerMode
    before = torch.tpu.eager_mode
    with torch.tpu.set_eager_mode(modes.DEBUG) as setting:
        assert torch.tpu.eager_mode is modes.DEBUG
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.eager_mode))
        thread.start()
        thread.join()
        assert seen == [before]
        with torch.tpu.set_eager_mode("strict"):
            assert torch.tpu.eager_mode is modes.STRICT
            with setting:
                assert torch.tpu.eager_mode is modes.DEBUG
        assert torch.tpu.eager_mode is modes.DEBUG
    assert torch.tpu.eager_mode is before

    @torch.tpu.set_eager_mode("strict")
    def decorated() -> object:
        return torch.tpu.eager_mode

    assert decorated() is modes.STRICT
    assert torch.tpu.eager_mode is before


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "FUSED"),
        ({"TORUS_EAGER_MODE": "strict"}, "STRICT"),
        ({"TORCH_TPU_LAUNCH_BLOCKING": "1"}, "DEBUG"),
        ({"TPU_DEFER_AND_FUSE": "0"}, "STRICT"),
        ({"TORCH_TPU_DEFER_AND_FUSE": "1"}, "FUSED"),
    ],
)
def test_eager_mode_from_environment(run_python, env: dict[str, str], expected: str) -> None:
    code = "import torch; print(torch.tpu.eager_mode.name)"
    assert run_python(code, env).stdout == f"{expected}\n"


def test_metrics(mode: str) -> None:
    torch.tpu.reset_metrics()
    assert torch.tpu.metrics()["operators"] == 0
    x = torch.ones(3, device="tpu")
    assert (x * 3 + 1).tolist() == [4, 4, 4]
    counters = torch.tpu.metrics()
    assert counters["operators"] >= 2
    assert counters["launches"] >= 1
    assert counters["bytes_to_host"] >= 12
    stats = torch.tpu._get_cache_stats()
    assert stats.num_requests == stats.num_hits + stats.num_compilations


def test_precision() -> None:
    before = torch.get_float32_matmul_precision()
    with torch.tpu.precision(torch.tpu.Precision.HIGH):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ValueError):
        torch.tpu.precision("exact")
    assert not torch.tpu.allow_excess_precision


def test_fallback_policy() -> None:
    before = torch.tpu.get_fallback()
    torch.tpu.set_fallback("silent")
    assert torch.tpu.get_fallback() == "silent"
    torch.tpu.set_fallback(before)
    with pytest.raises(ValueError):
        torch.tpu.set_fallback("maybe")


# ---- torch.compile ----


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"mode": "max-autotune"}, {"options": {"a": 1}}])
def test_compile_backend(arguments: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model = model.tpu()
    compiled = torch.compile(model, backend="tpu", dynamic=False, **arguments)
    x = torch.rand(3, 4, device="tpu")
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model[0].weight.grad.is_tpu


# ---- fresh processes ----


def test_import_is_light_and_silent(run_python) -> None:
    result = run_python(
        "import sys, os, torch\n"
        "assert torch.tpu.is_available() and not torch.tpu.is_initialized()\n"
        "assert os.environ['ACCELERATE_TORCH_DEVICE'] == 'tpu'\n"
        "heavy = ['torch._dynamo', 'torch._inductor', 'rich', 'torch_tpu.compiler']\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_import_by_hand(run_python) -> None:
    code = "import torch_tpu, torch; print(torch.ones(1, device='tpu').item())"
    for switch in ("0", "1"):
        env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": switch}
        assert run_python(code, env).stdout == "1.0\n"


def test_eight_devices(run_python) -> None:
    code = """
import torch
assert torch.tpu.device_count() == torch.accelerator.device_count() == 8
for i in range(8):
    x = torch.full((2,), float(i), device=f"tpu:{i}")
    assert x.device.index == i and x.tolist() == [i, i]
with torch.tpu.device(3):
    assert torch.ones(1, device="tpu").device.index == 3
torch.tpu.set_device("tpu:5")
assert torch.accelerator.current_device_index() == 5
moved = torch.ones(2, device="tpu").to("tpu:7")
assert moved.device.index == 7 and moved.tolist() == [1, 1]
assert len(torch.tpu.get_rng_state_all()) == 8
for use in (lambda: torch.ones(1, device="tpu:9"), lambda: torch.tpu.set_device(9)):
    try:
        use()
    except RuntimeError as error:
        assert "9" in str(error), error
    else:
        raise AssertionError("tpu:9 was accepted")
print("done")
"""
    assert run_python(code, env={"TORUS_CPU_DEVICES": "8"}).stdout == "done\n"


FIRST_USE = """
import torch
torch.manual_seed(0)
print(torch.tpu.is_available(), torch.ones(2).sum().item())
try:
    torch.ones(1, device="tpu")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"TORUS_PLATFORM": "/no/such/plugin.so"}, ["/no/such/plugin.so", "no such file"]),
        ({"TORUS_PLATFORM": "plugin.so"}, ["absolute"]),
        ({"TORUS_PLATFORM": "abacus"}, ["abacus", "auto, cpu, tpu, cuda"]),
        ({"TORUS_CPU_DEVICES": "many", "TORUS_PLATFORM": "cpu"}, ["TORUS_CPU_DEVICES", "many"]),
        ({"TORUS_EAGER_MODE": "quick"}, ["TORUS_EAGER_MODE", "debug, strict, fused"]),
    ],
)
def test_wrong_settings_are_told_at_first_use(
    run_python, env: dict[str, str], words: list[str]
) -> None:
    output = run_python(FIRST_USE, env).stdout
    assert [word for word in words if word not in output] == []


def test_text_file_as_plugin(run_python, tmp_path) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_text("not a library\n")
    output = run_python(FIRST_USE, env={"TORUS_PLATFORM": str(plugin)}).stdout
    assert str(plugin) in output


def test_use_after_fork_is_refused(run_python) -> None:
    code = """
import os, sys, torch
torch.ones(1, device="tpu").item()
pid = os.fork()
if pid == 0:
    status = 1
    try:
        torch.manual_seed(0)
        assert torch.tpu._is_in_bad_fork() and not torch.tpu.is_initialized()
        for use in (lambda: torch.ones(1, device="tpu").item(), torch.tpu.init):
            try:
                use()
            except RuntimeError as error:
                assert "spawn" in str(error), error
                status = 0
            else:
                status = 1
                break
    finally:
        os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), torch.ones(2, device="tpu").tolist())
"""
    assert run_python(code).stdout == "0 [1.0, 1.0]\n"


def test_data_loader_workers(run_python) -> None:
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.ones(1, device="tpu").item()
data = TensorDataset(torch.arange(8.0))
loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
print(sum(batch.to("tpu").sum().item() for (batch,) in loader))
"""
    assert run_python(code).stdout == "28.0\n"


def test_torch_version_mismatch_is_told(run_python) -> None:
    code = """
import torch
torch.__version__ = "2.1.0"
try:
    import torch_tpu
except ImportError as error:
    print(error)
"""
    output = run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout
    assert "2.1.0" in output
    assert torch.__version__ in output or torch.__version__.split("+")[0] in output
    assert "pip install" in output


# ---- autograd ----


def test_backward_runs_in_the_thread_that_calls_it() -> None:
    seen = []
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(threading.get_ident()))
    y.sum().backward()
    assert seen == [threading.get_ident()]


def test_backward_in_a_thread_of_autograd_on_request() -> None:
    seen = []
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(threading.get_ident()))
    with torch.autograd.set_multithreading_enabled(True):
        y.sum().backward()
    assert seen != [threading.get_ident()]
    torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 2.0))
