# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What a job needs to be set on this host: hosts, ranks, addresses, and a chip for each process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from torch_tpu.distributed.pod import Pod, PodError

# Where libtpu's processes of one host listen, the first of them.
_FIRST_PORT = 8476


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes
    ----------
    nproc : int
        Processes on this host; 0: one for each chip.
    port : int
        Where the first host listens.
    max_restarts : int
        How often the processes may be started again.
    """

    nproc: int = 0
    port: int = 29500
    max_restarts: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A job as this host starts it.

    Attributes
    ----------
    pod : Pod or None
        None without a TPU.
    nodes, node, nproc : int
        Hosts, number of this one, processes on each.
    common : dict of str to str
        Variables of all processes.
    ranks : list of dict of str to str
        Variables of each process of this host.
    arguments : list of str
        For ``torch.distributed.run``.
    """

    pod: Pod | None
    nodes: int
    node: int
    nproc: int
    common: dict[str, str]
    ranks: list[dict[str, str]]
    arguments: list[str]

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.nodes * self.nproc


def make(
    pod: Pod | None,
    options: Options,
    program: Sequence[str],
    environment: Mapping[str, str],
    cores: int,
) -> Plan:
    """Work out the plan.

    Parameters
    ----------
    pod : Pod or None
    options : Options
    program : sequence of str
        The user's program and its arguments, as Python takes them.
    environment : mapping of str to str
        What is set there already is left as it is.
    cores : int
        Of this host.

    Raises
    ------
    PodError
        If the number of processes does not fit the chips.
    """
    chips = math.prod(pod.chips_per_host) if pod else 1
    nproc = options.nproc or chips
    if pod and nproc not in (1, chips):
        raise PodError(
            f"this host has {chips} chips: --nproc {chips} gives each to a process, --nproc 1 all "
            f"of them to one (see docs/spmd.md), {nproc} does neither"
        )
    nodes = pod.host_count * pod.slice_count if pod else 1
    defaults = {"OMP_NUM_THREADS": str(max(1, cores // nproc)), **_slices(pod)}
    common = {name: value for name, value in defaults.items() if name not in environment}
    if pod:
        common["TORUS_POD"] = pod.to_json()
    ranks = [_chip(pod, k) if pod and nproc > 1 else {} for k in range(nproc)]
    node = pod.node if pod else 0
    arguments = [*_meeting(pod, nodes, node, options), f"--nproc-per-node={nproc}"]
    if options.max_restarts:
        arguments.append(f"--max-restarts={options.max_restarts}")
    arguments += ["--module", "torus.launch.rank", *program]
    return Plan(pod, nodes, node, nproc, common, ranks, arguments)


def _slices(pod: Pod | None) -> dict[str, str]:
    if pod is None or pod.slice_count == 1:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": pod.coordinator,
        "MEGASCALE_NUM_SLICES": str(pod.slice_count),
        "MEGASCALE_SLICE_ID": str(pod.slice_index),
    }


def _chip(pod: Pod, local_rank: int) -> dict[str, str]:
    """Return what makes libtpu take one chip and find the processes that have the others."""
    per_host = math.prod(pod.chips_per_host)
    ports = range(_FIRST_PORT, _FIRST_PORT + per_host)
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": ",".join(map(str, pod.topology)),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:{p}" for host in pod.addresses for p in ports),
        "TPU_PROCESS_PORT": str(ports[local_rank]),
        "TPU_VISIBLE_CHIPS": str(local_rank),
        "CLOUD_TPU_TASK_ID": str(pod.worker * per_host + local_rank),
    }


def _meeting(pod: Pod | None, nodes: int, node: int, options: Options) -> list[str]:
    """Return how the hosts find each other."""
    if pod is None or nodes == 1:
        return ["--standalone"]
    first = pod.first_address
    if options.max_restarts:
        # Only this way can the hosts start their processes again together.
        endpoint = f"--rdzv-endpoint={first}:{options.port}"
        return [f"--nnodes={nodes}", "--rdzv-backend=c10d", endpoint, "--rdzv-id=torus"]
    address = [f"--master-addr={first}", f"--master-port={options.port}"]
    return [f"--nnodes={nodes}", f"--node-rank={node}", *address]
