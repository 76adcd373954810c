# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What `torus.migrate` makes of single expressions, imports, comments and layouts."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("libcst")

from torus.migrate import Project, migrate_source

IMPORTS = """\
import os
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
import torch_xla.utils.serialization as xser
import torch_xla.utils.utils as xu
from torch_xla.amp import GradScaler, autocast, syncfree
from torch_xla.experimental.custom_kernel import flash_attention
"""

# (before, after) after the imports; "" where a statement goes.
STATEMENTS = [
    ("d = xm.xla_device()", 'd = torch.device("tpu")'),
    ("d = xm.xla_device(n=None)", 'd = torch.device("tpu")'),
    ("d = xm.xla_device(1, devkind='TPU')", 'd = torch.device("tpu", 1)'),
    ("d = torch_xla.device(index=i)", 'd = torch.device("tpu", i)'),
    ("d = torch.device('xla:1')", "d = torch.device('tpu:1')"),
    ("x = torch.ones(2, device='xla').to('xla')", "x = torch.ones(2, device='tpu').to('tpu')"),
    ("x = torch.load(f, map_location='xla:0')", "x = torch.load(f, map_location='tpu:0')"),
    ("y = print('xla')", "y = print('xla')"),
    ("y = x.device.type == 'xla'", "y = x.device.type == 'tpu'"),
    ("y = 'xla' in str(x.device)", "y = 'tpu' in str(x.device)"),
    ("xm.mark_step()", ""),
    ("torch_xla.sync(reset_scope=False)", ""),
    ("xm.mark_step(wait=True)", "torch.tpu.synchronize()"),
    ("torch_xla.sync(flag)", "torch.tpu.synchronize()"),
    ("xm.wait_device_ops(['xla:0'])", "torch.tpu.synchronize()"),
    ("xm.optimizer_step(o)", "training.optimizer_step(o)"),
    ("xm.optimizer_step(o, True, pin_layout=False)", "training.optimizer_step(o)"),
    (
        "xm.optimizer_step(o, optimizer_args={'closure': c}, groups=g)",
        "training.optimizer_step(o, groups=g, **{'closure': c})",
    ),
    ("xm.reduce_gradients(o, pin_layout=False)", "training.reduce_gradients(o)"),
    ("xm.add_step_closure(f, args=(a, b))", "f(a, b)"),
    ("xm.add_step_closure(f, (a,), run_async=True)", "f(a)"),
    ("xm.add_step_closure(f, args)", "f(*args)"),
    ("xm.add_step_closure(lambda: f(1))", None),
    ("n = xr.world_size() + xm.xrt_world_size()", None),
    ("r = xr.global_ordinal(), xm.get_ordinal()", "r = training.rank(), training.rank()"),
    ("m = xm.is_master_ordinal()", "m = training.is_main(local=True)"),
    ("m = xm.is_master_ordinal(local=False)", "m = training.is_main()"),
    ("xm.master_print('a', fd=f, flush=True)", "training.print_main('a', file=f, flush=True)"),
    ("xm.rendezvous('tag')", "training.barrier()"),
    ("p = xm.rendezvous('tag', b'x')", "p = training.gather(b'x')"),
    ("a = xm.mesh_reduce('t', a, np.mean)", "a = np.mean(training.gather(a))"),
    (
        "a = xm.mesh_reduce('t', a, lambda v: v[0])",
        "a = (lambda v: v[0])(training.gather(a))",
    ),
    (
        "x = xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5)",
        'x = training.all_reduce("sum", x, scale=0.5)',
    ),
    (
        "x = xm.all_reduce(reduce_type='max', inputs=[x], pin_layout=False)",
        "x = training.all_reduce(kind='max', value=[x])",
    ),
    ("x = xm.all_gather(x, dim=1, pin_layout=False)", "x = training.all_gather(x, dim=1)"),
    (
        "x = xm.reduce_scatter('sum', x, 1.0, 0, 4)",
        "x = training.reduce_scatter('sum', x, 1.0, 0)",
    ),
    ("x = xm.all_to_all(x, 0, 1, 4)", "x = training.all_to_all(x, 0, 1)"),
    (
        "x = xm.all_to_all(x, 0, 1, 4, [[0, 1]])",
        "x = training.all_to_all(x, 0, 1, groups=[[0, 1]])",
    ),
    ("xm.broadcast_master_param(net)", "training.broadcast_parameters(net)"),
    ("xm.collective_broadcast(ts, root_ordinal=1)", "training.broadcast(ts, source=1)"),
    ("xmp.spawn(f, args=(1,), nprocs=8)", "training.launch(f, args=(1,), nprocs=8)"),
    ("torch_xla.launch(f)", "training.launch(f)"),
    (
        "torch_xla.launch(f, (1,), debug_single_process=debug)",
        "training.launch(f, (1,), nprocs=1 if debug else None)",
    ),
    ("net = xmp.MpModelWrapper(Net())", "net = Net()"),
    ("run = xmp.MpSerialExecutor()", "run = training.SerialExecutor()"),
    ("dist.init_process_group('xla', init_method='xla://')", "training.init()"),
    ("dist.init_process_group(backend='xla')", "training.init()"),
    ("dist.init_process_group('gloo')", "dist.init_process_group('gloo')"),
    ("b = pl.MpDeviceLoader(l, d, device_prefetch_size=4)", "b = training.DeviceLoader(l, d)"),
    ("b = pl.ParallelLoader(l, [d])", "b = training.DeviceLoader(l, d)"),
    ("b = pl.ParallelLoader(l, [d]).per_device_loader(d)", "b = training.DeviceLoader(l, d)"),
    ("xm.save(s, 'f')", "training.save(s, 'f')"),
    (
        "xm.save(s, 'f', master_only=False)",
        "training.save(s, 'f', main_only=False)",
    ),
    ("xser.save(s, path, global_master=True)", "training.save(s, path, per_host=False)"),
    ("s = xser.load(path)", "s = torch.load(path)"),
    ("b = xu.SampleGenerator(data=(x, y), sample_count=n + 1)", "b = [(x, y)] * (n + 1)"),
    ("x = xm.send_cpu_data_to_device(x, d)", "x = training.to_device(x, d)"),
    ("m = torch_xla.compile(net)", 'm = torch.compile(net, backend="tpu")'),
    (
        "m = torch_xla.compile(net, full_graph=True, name='x')",
        'm = torch.compile(net, backend="tpu", fullgraph=True)',
    ),
    ("m = torch.compile(net, backend='openxla')", 'm = torch.compile(net, backend="tpu")'),
    ("a = autocast(xm.xla_device())", 'a = torch.autocast("tpu")'),
    (
        "a = autocast(d, False, torch.bfloat16)",
        'a = torch.autocast("tpu", enabled=False, dtype=torch.bfloat16)',
    ),
    ("a = torch.autocast('xla')", "a = torch.autocast('tpu')"),
    ("s = GradScaler(use_zero_grad=True)", 's = torch.amp.GradScaler("tpu")'),
    ("s = GradScaler(2.0)", 's = torch.amp.GradScaler("tpu", 2.0)'),
    ("o = syncfree.SGD(p, lr=1)", "o = torch.optim.SGD(p, lr=1)"),
    ("xm.set_rng_state(3, d)", "torch.tpu.manual_seed(3)"),
    ("torch_xla.manual_seed(3)", "torch.tpu.manual_seed(3)"),
    ("f = xm.is_xla_tensor(x)", 'f = (x.device.type == "tpu")'),
    ("n = len(xm.get_xla_supported_devices())", "n = torch.tpu.device_count()"),
    ("print(met.metrics_report())", "print(str(torch.tpu.metrics()))"),
    ("n = met.metric_data('CompileTime')[0]", 'n = torch.tpu.metrics()["compilations"]'),
    ("n = met.counter_value('CachedCompile')", 'n = torch.tpu.metrics()["cache_hits"]'),
    (
        "n = met.counter_value('aten::median')",
        'n = torch.tpu.metrics()["fallbacks"].get("aten::median", 0)',
    ),
    ("met.clear_all()", "torch.tpu.reset_metrics()"),
    ("t = xp.Trace('x')", "t = torch.profiler.record_function('x')"),
    ("mesh = xs.Mesh(ids, (2, 4), ('a', 'b'))", "mesh = training.make_mesh((2, 4), ('a', 'b'))"),
    ("mesh = xs.get_1d_mesh('x')", "mesh = training.make_mesh((training.world_size(),), ('x',))"),
    ("xs.mark_sharding(x, mesh, (0, None))", "x = training.shard(x, mesh, (0, None))"),
    (
        "xs.mark_sharding(net.fc.weight, mesh, p)",
        "net.fc.weight = training.shard(net.fc.weight, mesh, p)",
    ),
    ("s = xs.ShardingSpec(mesh, p, minibatch=True)", "s = training.ShardingSpec(mesh, p)"),
    ("xr.initialize_cache('/c', readonly=False)", "os.environ[\"TORUS_CACHE_DIR\"] = '/c'"),
    (
        "y = flash_attention(q, k, v, causal=True)",
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)",
    ),
    ("os.environ['PJRT_DEVICE'] = 'TPU'", ""),
    ("os.environ['PJRT_DEVICE'] = 'CPU'", 'os.environ["TORUS_PLATFORM"] = "cpu"'),
    (
        "os.environ.setdefault('PT_XLA_DEBUG', '1')",
        'os.environ.setdefault("TORUS_LOG", "compile")',
    ),
    (
        "c = os.environ.get('XLA_PERSISTENT_CACHE_PATH', '')",
        "c = os.environ.get(\"TORUS_CACHE_DIR\", '')",
    ),
]


def body(text: str) -> str:
    """Return a migrated text without its imports."""
    lines = [line for line in text.splitlines() if not line.startswith(("import ", "from "))]
    return "\n".join(lines).strip()


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in STATEMENTS if pair[1] is not None], ids=lambda text: text
)
def test_statement(before: str, after: str) -> None:
    # Reading a divided tensor is a test of its own.
    migration = migrate_source(f"{IMPORTS}{before}\n", "f.py", Project(many_processes=True))
    assert migration.is_complete, migration.findings
    assert body(migration.after) == after
    assert "torch_xla" not in migration.after
    assert migrate_source(migration.after).after == migration.after


def test_one_process_needs_no_exchange() -> None:
    text = "import torch_xla.core.xla_model as xm\nxm.optimizer_step(o, barrier=True)\n"
    assert migrate_source(text).after == "o.step()\n"
    many = text + "import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f)\n"
    assert "training.optimizer_step(o)" in migrate_source(many).after


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_xla.core.xla_model\nf = torch_xla.core.xla_model.get_ordinal",
        "import torch_xla.core.xla_model as xm\nf = xm.get_ordinal",
        "import torch_xla.core.xla_model as model\nf = model.get_ordinal",
        "from torch_xla.core import xla_model\nf = xla_model.get_ordinal",
        "from torch_xla.core import xla_model as m, xla_env_vars\nf = m.get_ordinal",
        "from torch_xla.core.xla_model import get_ordinal\nf = get_ordinal",
        "from torch_xla.core.xla_model import (\n    get_ordinal as rank,\n)\nf = rank",
        "import torch_xla as t\nimport torch_xla.core.xla_model\nf = t.core.xla_model.get_ordinal",
        "import torch_xla\nfrom torch_xla.core import *\nimport torch_xla.core.xla_model as xm\n"
        "f = xm.get_ordinal",
    ],
)
def test_import_styles(imports: str) -> None:
    after = migrate_source(imports + "\n").after
    assert "from torch_tpu import training\n" in after
    assert after.endswith("f = training.rank\n")
    assert ("torch_xla" in after) is ("*" in imports)


def check(before: str, after: str) -> None:
    before, after = textwrap.dedent(before), textwrap.dedent(after)
    migration = migrate_source(before, "f.py")
    assert migration.after == after
    assert migrate_source(after).after == after


def test_comments_and_layout_stay() -> None:
    check(
        '''\
        #!/usr/bin/env python
        # A licence.
        """A docstring."""

        from __future__ import annotations

        import math  # maths
        # the accelerator
        import torch_xla.core.xla_model as xm

        X = {  'a':1 }   # odd spacing stays


        def step(loader,
                 device = xm.xla_device()):  # where
            for batch in loader:

                # forward
                use(batch)

                # ends the step
                xm.mark_step()  # gone

                # afterwards
                more(batch)
                # last words
                xm.mark_step()
        ''',
        '''\
        #!/usr/bin/env python
        # A licence.
        """A docstring."""

        from __future__ import annotations

        import math  # maths
        # the accelerator
        import torch

        X = {  'a':1 }   # odd spacing stays


        def step(loader,
                 device = torch.device("tpu")):  # where
            for batch in loader:

                # forward
                use(batch)

                # ends the step

                # afterwards
                more(batch)
                # last words
        ''',
    )


def test_blocks_that_become_empty() -> None:
    check(
        """\
        import torch_xla.core.xla_model as xm

        def f(flag, g):
            if flag:
                xm.mark_step()
            if g():
                xm.mark_step()
            if flag: xm.mark_step()
            if flag:
                g()
            elif not flag:
                xm.mark_step()
            else:
                g()

        def end():
            xm.mark_step()
        """,
        """\

        def f(flag, g):
            if g():
                pass
            if flag: pass
            if flag:
                g()
            elif not flag:
                pass
            else:
                g()

        def end():
            pass
        """,
    )


def test_guarded_imports() -> None:
    check(
        """\
        import torch
        try:
            import torch_xla.core.xla_model as xm
        except ImportError:
            xm = None
        else:
            READY = True

        device = xm.xla_device()
        """,
        """\
        import torch
        READY = True

        device = torch.device("tpu")
        """,
    )


def test_imports_inside_functions() -> None:
    check(
        """\
        import torch


        def f():
            import torch_xla.core.xla_model as xm

            return xm.get_ordinal()
        """,
        """\
        import torch
        from torch_tpu import training


        def f():

            return training.rank()
        """,
    )


def test_step_scopes_are_taken_out() -> None:
    check(
        """\
        import torch_xla as xla

        with xla.step():
            # forward
            f()
        with open("a") as file, xla.compile():
            f()

        @xla.compile(full_graph=True)
        def g(): ...

        @xla.compile
        def h(): ...
        """,
        """\
        import torch

        # forward
        f()
        with open("a") as file:
            f()

        @torch.compile(backend="tpu", fullgraph=True)
        def g(): ...

        @torch.compile(backend="tpu")
        def h(): ...
        """,
    )


def test_training_steps_are_left_to_fused_mode() -> None:
    check(
        """\
        import torch_xla

        def step(x):
            loss = model(x)
            loss.backward()

        step = torch_xla.compile(step, full_graph=True)
        """,
        """\

        def step(x):
            loss = model(x)
            loss.backward()

        step = step
        """,
    )


def test_a_name_that_is_taken() -> None:
    check(
        """\
        import torch_xla.core.xla_model as xm

        def f(training=True):
            return xm.get_ordinal()
        """,
        """\
        from torch_tpu import training as tpu_training

        def f(training=True):
            return tpu_training.rank()
        """,
    )


def test_values_of_divided_tensors_are_read_whole() -> None:
    check(
        """\
        import torch_xla.runtime as xr

        xr.use_spmd()
        print(loss.item(), loss.detach().cpu())
        """,
        """\
        from torch_tpu import training

        training.replicate_unmarked()
        print(training.whole(loss).item(), training.whole(loss.detach()).cpu())
        """,
    )


def test_optimum() -> None:
    check(
        """\
        from optimum.tpu import AutoModelForCausalLM as Auto, fsdp_v2
        from transformers import is_torch_xla_available, AutoTokenizer

        fsdp_v2.use_fsdp_v2()
        model = Auto.from_pretrained("m", task="text-generation", batch_size=1)
        flag = is_torch_xla_available()
        """,
        """\
        from transformers import AutoModelForCausalLM
        from transformers.utils import is_torch_tpu_available
        from transformers import AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained("m", device_map="tpu")
        flag = is_torch_tpu_available()
        """,
    )


def test_what_is_left_is_reported_where_it_is() -> None:
    text = textwrap.dedent(
        """\
        import os
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met
        import torch_xla.distributed.spmd as xs
        from torch_xla.experimental.scan_layers import scan_layers
        from torch_xla.core.functions import *

        os.environ["XLA_USE_BF16"] = "1"
        y = scan_layers(layers, x)
        xm.optimizer_step(**options)
        if xm is not None:
            xm.send(x, 0)
        for name, p in net.named_parameters():
            xs.mark_sharding(p, mesh, spec)
        met.metric_data("Unknown")
        """
    )
    migration = migrate_source(text, "f.py")
    assert migration.after == text
    places = [(finding.line, finding.column, finding.name) for finding in migration.findings]
    assert places == [
        (6, 1, "torch_xla.core.functions"),
        (8, 1, "XLA_USE_BF16"),
        (9, 5, "scan_layers"),
        (10, 1, "xm.optimizer_step"),
        (11, 4, "xm"),
        (12, 5, "xm.send"),
        (14, 5, "xs.mark_sharding"),
        (15, 1, "met.metric_data"),
    ]
    assert all(finding.manual and finding.remedy for finding in migration.findings)
    assert "shard_parameters" in migration.findings[6].remedy


def test_other_programs_are_left_alone() -> None:
    for text in ("import torch\nx = torch.ones(2)\n", "", "x = (\n", "# the xla compiler\n"):
        migration = migrate_source(text, "f.py")
        assert migration.after == text
        assert migration.findings == []


def test_a_file_that_is_no_python() -> None:
    migration = migrate_source("import torch_xla\nprint 'two'\n", "f.py")
    assert not migration.is_changed
    assert [(finding.line, finding.name) for finding in migration.findings] == [(2, "syntax error")]
