# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""``torus launch``: what it makes of a TPU VM's metadata, and processes on the CPU plugin."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import subprocess
import sys
import threading

import pytest
from torch_tpu.distributed import mesh, pod

MULTISLICE = """\
ACCELERATOR_TYPE: 'v5litepod-16'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
HOST_BOUNDS: '2,2,1'
TOPOLOGY: '4x4'
WORKER_ID: '2'
MEGASCALE_NUM_SLICES: '2'
MEGASCALE_SLICE_ID: '1'
MEGASCALE_COORDINATOR_ADDRESS: '10.1.0.1:8080'
"""
ENDPOINTS = ",".join(f"unknown:unknown:10.0.0.{k}" for k in range(1, 5))
GKE = {
    "TPU_ACCELERATOR_TYPE": "tpu7x-16",
    "TPU_TOPOLOGY": "2x2x2",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_WORKER_HOSTNAMES": "job-0.job,job-1.job",
    "TPU_WORKER_ID": "1",
}


def run_launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "MEGASCALE_"))}
    return subprocess.run(
        [sys.executable, "-m", "torus", "launch", *arguments],
        env={**kept, "TORUS_PLATFORM": "cpu", "GLOO_SOCKET_IFNAME": "lo", **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )


def dry_run(*arguments: str, **variables: str) -> dict:
    result = run_launch("--dry-run", "--json", *arguments, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


# ---- metadata ----


@pytest.mark.parametrize(
    ("environment", "topology", "chips", "count"),
    [
        (GKE, (2, 2, 2), (2, 2, 1), 2),
        ({"TPU_ACCELERATOR_TYPE": "v6e-8", "TPU_TOPOLOGY": "2x4"}, (2, 4, 1), (2, 4, 1), 1),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-4"}, (2, 2, 1), (2, 2, 1), 1),
        ({"TPU_ACCELERATOR_TYPE": "v4-8"}, (2, 2, 1), (2, 2, 1), 1),
        ({"TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1"}, (1, 1, 1), (1, 1, 1), 1),
        (
            {"TPU_TOPOLOGY": "4x4", "TPU_WORKER_HOSTNAMES": "a,b,c,d"},
            (4, 4, 1),
            (2, 2, 1),
            4,
        ),
    ],
)
def test_extents(environment, topology, chips, count):
    found = pod.read(environment)
    assert found.topology == topology
    assert found.chips_per_host == chips
    assert found.host_count == count
    assert pod.Pod.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TPU_WORKER_HOSTNAMES": "a"}, "has 2 hosts, but WORKER_HOSTNAMES names 1"),
        ({"TPU_WORKER_ID": "2"}, "WORKER_ID is 2, of 2 hosts"),
        ({"TPU_WORKER_ID": "one"}, "WORKER_ID is 'one', not a number"),
        ({"TPU_TOPOLOGY": "2x3x2"}, "hosts of 2x2x1 chips do not fill a slice of 2x3x2"),
        ({"TPU_TOPOLOGY": "large"}, "TOPOLOGY is 'large'"),
        ({"MEGASCALE_NUM_SLICES": "2"}, "MEGASCALE_COORDINATOR_ADDRESS is not known"),
        ({"MEGASCALE_SLICE_ID": "1"}, "MEGASCALE_SLICE_ID is 1, of 1 slices"),
    ],
)
def test_what_does_not_fit_is_said(changes, words):
    with pytest.raises(pod.PodError, match=words):
        pod.read({**GKE, **changes})


def test_a_large_type_needs_its_topology():
    with pytest.raises(pod.PodError, match="set TPU_TOPOLOGY"):
        pod.read({"TPU_ACCELERATOR_TYPE": "v5litepod-256"})
    assert pod.read({}) is None


@pytest.fixture
def server():
    """Serve a TPU VM's attributes on this machine."""
    attributes = {
        "tpu-env": MULTISLICE,
        "worker-network-endpoints": ENDPOINTS,
        "accelerator-type": "v5litepod-16",
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = attributes.get(self.path.rpartition("/")[2])
            known = text is not None and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{served.server_port}"
    served.shutdown()


def test_metadata_server(server):
    found = pod.read({}, pod.read_server({"GCE_METADATA_HOST": server}))
    assert found.addresses == ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    assert (found.worker, found.node, found.slice_count) == (2, 6, 2)
    skipped = {"GCE_METADATA_HOST": server, "TPU_SKIP_MDS_QUERY": "1"}
    assert pod.read_server(skipped) == {}
    assert pod.read_server({"GCE_METADATA_HOST": "127.0.0.1:1"}) == {}


# ---- plans ----


def test_one_host_of_several_slices(tmp_path):
    file = tmp_path / "tpu-env.txt"
    file.write_text(f"{MULTISLICE}WORKER_HOSTNAMES: '{ENDPOINTS}'\n")
    plan = dry_run("--metadata", str(file), "train.py", "--lr", "3")
    assert (plan["nodes"], plan["node"], plan["world_size"]) == (8, 6, 32)
    assert plan["environment"]["MEGASCALE_SLICE_ID"] == "1"
    assert plan["environment"]["MEGASCALE_COORDINATOR_ADDRESS"] == "10.1.0.1:8080"
    assert [process["rank"] for process in plan["processes"]] == [24, 25, 26, 27]
    third = plan["processes"][2]["environment"]
    assert third["TPU_PROCESS_BOUNDS"] == "4,4,1"
    assert third["TPU_VISIBLE_CHIPS"] == "2"
    assert third["CLOUD_TPU_TASK_ID"] == "10"
    addresses = third["TPU_PROCESS_ADDRESSES"].split(",")
    assert addresses[10] == f"10.0.0.3:{third['TPU_PROCESS_PORT']}"
    assert len(set(addresses)) == 16
    command = " ".join(plan["command"])
    assert "--nnodes=8 --node-rank=6 --master-addr=10.1.0.1 --master-port=29500" in command
    assert command.endswith("--module torus.launch.rank train.py --lr 3")


def test_a_pod_by_its_environment():
    plan = dry_run("--max-restarts", "3", "--port", "1234", "-m", "package.train", **GKE)
    assert (plan["nodes"], plan["node"], plan["processes_per_node"]) == (2, 1, 4)
    command = " ".join(plan["command"])
    assert "--rdzv-backend=c10d --rdzv-endpoint=job-0.job:1234" in command
    assert "--max-restarts=3" in command
    assert command.endswith("torus.launch.rank -m package.train")
    alone = dry_run("--nproc", "1", "train.py", **GKE)
    assert alone["processes"] == [{"rank": 1, "environment": {}}]


def test_tables_and_wrong_usage():
    result = run_launch("--dry-run", "train.py", **GKE)
    assert result.returncode == 0, result.stderr
    assert "2x2x2 chips" in result.stdout
    assert "TPU_VISIBLE_CHIPS" in result.stdout
    result = run_launch("--dry-run", "train.py")
    assert "none: the CPU plugin" in result.stdout
    for arguments, words in (
        (("--nproc", "3", "train.py"), "--nproc 4 gives each to a process"),
        (("--metadata", "/no/such/file", "train.py"), "/no/such/file"),
        (("--nproc", "-1", "train.py"), "not negative"),
    ):
        result = run_launch(*arguments, **GKE)
        assert result.returncode == 2
        assert words in result.stderr
        assert "Traceback" not in result.stderr


# ---- processes ----

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch_tpu.distributed.mesh import topology_aware_mesh

dist.init_process_group("tpu_dist")
mesh = topology_aware_mesh((2, 2), ("data", "model"))
total = torch.ones(1, device="tpu")
dist.all_reduce(total, group=mesh.get_group("model"))
if dist.get_rank() == 0:
    print("mesh", mesh.mesh.tolist(), total.item(), sys.argv[1:], os.environ["TPU_VISIBLE_CHIPS"])
dist.destroy_process_group()
sys.exit(3 if sys.argv[1] == "bad" else 0)
"""


def test_processes_on_the_cpu(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    host = {"TPU_ACCELERATOR_TYPE": "v6e-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    result = run_launch(str(file), "good", "--flag", **host)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "mesh [[0, 2], [1, 3]] 2.0 ['good', '--flag'] 0" in result.stdout
    assert "OMP_NUM_THREADS" not in result.stderr
    result = run_launch(str(file), "bad", **host)
    assert result.returncode == 1
    assert "exitcode  : 3" in result.stderr


# ---- meshes ----


def places(slices: int, *grid: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(slices), *map(range, grid)))


def hops(a: tuple[int, ...], b: tuple[int, ...], grid: tuple[int, ...]) -> int:
    """Count links on the torus between two chips of a slice."""
    apart = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return sum(min(d, n - d) for d, n in zip(apart, grid, strict=True))


@pytest.mark.parametrize(
    ("shape", "slices", "grid"),
    [
        ((16,), 1, (4, 4, 1)),
        ((4, 4), 1, (4, 4, 1)),
        ((2, 8), 1, (4, 4, 1)),
        ((8, 2), 1, (4, 2, 2)),
        ((4, 8, 8), 1, (4, 8, 8)),
        ((16, 16), 1, (4, 8, 8)),
        ((2, 16), 2, (4, 4, 1)),
        ((4, 2, 8), 4, (4, 4, 1)),
        ((6, 4), 2, (3, 4, 1)),
        ((1, 12), 1, (3, 4, 1)),
    ],
)
def test_the_innermost_dimension_walks_along_links(shape, slices, grid):
    devices = places(slices, *grid)
    order = mesh.order_devices(shape, devices)
    assert sorted(order) == list(range(len(devices)))
    inner = shape[-1]
    for start in range(0, len(order), inner):
        row = [devices[k] for k in order[start : start + inner]]
        assert len({place[0] for place in row}) == 1 or len(shape) == 1
        assert all(hops(a[1:], b[1:], grid) == 1 for a, b in itertools.pairwise(row))
    # Slices are the slowest: each fills one block.
    block = len(devices) // slices
    for start in range(0, len(order), block):
        assert len({devices[k][0] for k in order[start : start + block]}) == 1


def test_whole_axes_close_to_rings():
    devices = places(1, 4, 8, 8)
    order = mesh.order_devices((4, 8, 8), devices)
    for start in range(0, len(order), 8):
        first, last = devices[order[start]], devices[order[start + 7]]
        assert hops(first[1:], last[1:], (4, 8, 8)) == 1


def test_meshes_that_do_not_fit():
    with pytest.raises(ValueError, match="the slices lie along its first dimension"):
        mesh.order_devices((3, 8), places(2, 3, 4, 1))
    with pytest.raises(ValueError, match="not whole slices"):
        mesh.order_devices((7,), places(1, 2, 2, 2)[1:])
