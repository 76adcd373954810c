# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What a TPU VM knows of itself: its slice, its place in it, and the slices it works with.

The names are those of Cloud TPU: variables ``TPU_*`` and ``MEGASCALE_*`` (GKE sets them), the same
names without ``TPU_`` in the metadata attribute ``tpu-env``, and the attributes
``accelerator-type``, ``agent-worker-number`` and ``worker-network-endpoints`` of TPU VMs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence

__all__ = ["Pod", "PodError", "coordinates", "of_this_process", "parse", "read", "read_server"]

Bounds = tuple[int, int, int]

_SERVER = "metadata.google.internal"
_SECONDS = 2.0
_ATTRIBUTES = {
    "accelerator-type": "ACCELERATOR_TYPE",
    "agent-worker-number": "WORKER_ID",
    "worker-network-endpoints": "WORKER_HOSTNAMES",
}
# Chips of one host by their number.
_HOSTS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
# Their types count cores, two on a chip.
_COUNT_CORES = ("v2", "v3", "v4", "v5p", "v7x", "tpu7x")


class PodError(ValueError):
    """What a machine says of itself is not enough, or does not fit together."""


@dataclasses.dataclass(frozen=True)
class Pod:
    """A slice of TPU chips, or several of them, and this host's place in it.

    Attributes
    ----------
    accelerator : str
        ``"v5litepod-16"`` and the like; empty if unknown.
    chips_per_host, hosts : tuple of 3 int
        Extents of one host's chips, and of the slice in hosts. Their product is the slice.
    addresses : tuple of str
        Of the slice's hosts, by worker.
    worker : int
        Number of this host in its slice.
    slice_index, slice_count : int
    coordinator : str
        Address of the first host of the first slice, with or without a port, where there are
        several slices.
    """

    accelerator: str = ""
    chips_per_host: Bounds = (1, 1, 1)
    hosts: Bounds = (1, 1, 1)
    addresses: tuple[str, ...] = ("localhost",)
    worker: int = 0
    slice_index: int = 0
    slice_count: int = 1
    coordinator: str = ""

    @property
    def topology(self) -> Bounds:
        """Chips of a slice along each axis."""
        return tuple(a * b for a, b in zip(self.hosts, self.chips_per_host, strict=True))

    @property
    def host_count(self) -> int:
        """Hosts of one slice."""
        return math.prod(self.hosts)

    @property
    def node(self) -> int:
        """Number of this host among those of all slices."""
        return self.slice_index * self.host_count + self.worker

    @property
    def first_address(self) -> str:
        """The host at which all others meet."""
        return self.coordinator.split(":")[0] or self.addresses[0]

    def to_json(self) -> str:
        """Return it as a text that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Pod:
        """Return what `to_json` wrote."""
        fields = json.loads(text)
        return Pod(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def coordinates(pod: Pod) -> list[tuple[int, int, int, int]]:
    """Return slice, x, y, z of every chip by rank, with a process for each chip.

    Hosts follow each other along x first, then y, then z, and so do the chips of a host.
    """
    places = [
        tuple(h * c + k for h, c, k in zip(host, pod.chips_per_host, chip, strict=True))
        for host in _grid(pod.hosts)
        for chip in _grid(pod.chips_per_host)
    ]
    return [(number, *place) for number in range(pod.slice_count) for place in places]


def _grid(bounds: Bounds) -> list[Bounds]:
    x, y, z = bounds
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def parse(text: str) -> dict[str, str]:
    """Return names and values of a file of metadata.

    Parameters
    ----------
    text : str
        Lines ``NAME: 'value'`` as in ``tpu-env``, or ``NAME=value``; or one JSON object.
    """
    if text.lstrip().startswith("{"):
        found = {str(name): str(value) for name, value in json.loads(text).items()}
    else:
        found = {}
        for line in text.splitlines():
            cut = min((line.find(c) for c in ":=" if c in line), default=-1)
            if cut > 0 and not line.lstrip().startswith("#"):
                name = line[:cut].strip().removeprefix("export ")
                found[name] = line[cut + 1 :].strip().strip("'\"")
    return {_ATTRIBUTES.get(name, name.removeprefix("TPU_")): v for name, v in found.items()}


def read_server(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the metadata server of a TPU VM says; nothing where there is none.

    Parameters
    ----------
    environment : mapping of str to str
        Read: ``GCE_METADATA_HOST``, and ``TPU_SKIP_MDS_QUERY``, which forbids to ask.
    """
    import urllib.error
    import urllib.request

    if environment.get("TPU_SKIP_MDS_QUERY"):
        return {}
    host = environment.get("GCE_METADATA_HOST", _SERVER)
    found: dict[str, str] = {}
    for name in ("tpu-env", *_ATTRIBUTES):
        url = f"http://{host}/computeMetadata/v1/instance/attributes/{name}"
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError:  # it has no such attribute
            continue
        except OSError:
            return found
        found = {**(parse(text) if name == "tpu-env" else {_ATTRIBUTES[name]: text}), **found}
    return found


def read(environment: Mapping[str, str], metadata: Mapping[str, str] | None = None) -> Pod | None:
    """Make a `Pod` of what is known.

    Parameters
    ----------
    environment : mapping of str to str
        Variables ``TPU_*`` and ``MEGASCALE_*``; they come first.
    metadata : mapping of str to str, optional
        From `parse` or `read_server`.

    Returns
    -------
    Pod or None
        None if nothing speaks of a TPU.

    Raises
    ------
    PodError
        If what is known is not enough or does not fit together.
    """
    names = {name.removeprefix("TPU_"): v for name, v in environment.items() if _is_ours(name)}
    known = {name: v for name, v in {**(metadata or {}), **names}.items() if v}
    if not known.keys() & {"ACCELERATOR_TYPE", "TOPOLOGY", "CHIPS_PER_HOST_BOUNDS"}:
        return None
    addresses = _addresses(known.get("WORKER_HOSTNAMES", "localhost"))
    chips, hosts = _bounds(known, len(addresses))
    pod = Pod(
        accelerator=known.get("ACCELERATOR_TYPE", ""),
        chips_per_host=chips,
        hosts=hosts,
        addresses=addresses,
        worker=_number(known, "WORKER_ID", 0),
        slice_index=_number(known, "MEGASCALE_SLICE_ID", 0),
        slice_count=_number(known, "MEGASCALE_NUM_SLICES", 1),
        coordinator=known.get("MEGASCALE_COORDINATOR_ADDRESS", ""),
    )
    _check(pod)
    return pod


def _is_ours(name: str) -> bool:
    return name.startswith(("TPU_", "MEGASCALE_"))


def _addresses(text: str) -> tuple[str, ...]:
    """Take ``host``, ``host:port`` and ``network:zone:host`` as the metadata server writes it."""
    parts = [part.strip().split(":") for part in text.split(",") if part.strip()]
    return tuple(part[2] if len(part) == 3 else part[0] for part in parts)


def _number(known: Mapping[str, str], name: str, default: int) -> int:
    text = known.get(name, str(default))
    if not text.isdigit():
        raise PodError(f"{name} is {text!r}, not a number")
    return int(text)


def _extents(name: str, text: str) -> Bounds:
    parts = text.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(part.isdigit() and int(part) for part in parts):
        raise PodError(f"{name} is {text!r}, not counts along two or three axes such as 2x4")
    return tuple(map(int, [*parts, 1, 1][:3]))


def _bounds(known: Mapping[str, str], host_count: int) -> tuple[Bounds, Bounds]:
    """Return the extents of a host in chips and of the slice in hosts."""
    given = {
        name: _extents(source, known[source])
        for name, source in (
            ("chips", "CHIPS_PER_PROCESS_BOUNDS"),
            ("hosts", "PROCESS_BOUNDS"),
            ("chips", "CHIPS_PER_HOST_BOUNDS"),
            ("hosts", "HOST_BOUNDS"),
            ("slice", "TOPOLOGY"),
        )
        if source in known
    }
    whole = given.get("slice")
    if "chips" in given and "hosts" in given:
        return given["chips"], given["hosts"]
    if whole is None and "chips" in given:
        if host_count > 1:
            raise PodError(f"{host_count} hosts, but neither TOPOLOGY nor HOST_BOUNDS is known")
        return given["chips"], (1, 1, 1)
    whole = whole or _of_type(known["ACCELERATOR_TYPE"])
    chips = given.get("chips") or _host_of(whole, host_count)
    return chips, _divide(whole, chips)


def _host_of(whole: Bounds, host_count: int) -> Bounds:
    if host_count == 1:
        return whole
    count, rest = divmod(math.prod(whole), host_count)
    if rest or count not in _HOSTS:
        raise PodError(
            f"{host_count} hosts cannot share a slice of {_text(whole)}; is WORKER_HOSTNAMES whole?"
        )
    return _HOSTS[count]


def _of_type(accelerator: str) -> Bounds:
    """Return the extents of a type that fits on one host; others need their topology."""
    generation, _, number = accelerator.rpartition("-")
    count = int(number) if number.isdigit() else 0
    chips = count // 2 if generation in _COUNT_CORES else count
    if chips not in _HOSTS:
        raise PodError(f"the topology of {accelerator!r} is not known: set TPU_TOPOLOGY, as in 4x4")
    return _HOSTS[chips]


def _divide(whole: Bounds, part: Bounds) -> Bounds:
    if any(a % b for a, b in zip(whole, part, strict=True)):
        raise PodError(f"hosts of {_text(part)} chips do not fill a slice of {_text(whole)}")
    return tuple(a // b for a, b in zip(whole, part, strict=True))


def _text(bounds: Sequence[int]) -> str:
    return "x".join(map(str, bounds))


def _check(pod: Pod) -> None:
    if pod.host_count != len(pod.addresses):
        raise PodError(
            f"the slice of {_text(pod.topology)} chips has {pod.host_count} hosts, but "
            f"WORKER_HOSTNAMES names {len(pod.addresses)}"
        )
    if not pod.worker < pod.host_count:
        raise PodError(f"WORKER_ID is {pod.worker}, of {pod.host_count} hosts")
    if not pod.slice_index < pod.slice_count:
        raise PodError(f"MEGASCALE_SLICE_ID is {pod.slice_index}, of {pod.slice_count} slices")
    if pod.slice_count > 1 and not pod.coordinator:
        raise PodError("several slices, but MEGASCALE_COORDINATOR_ADDRESS is not known")


def of_this_process() -> Pod | None:
    """Return the pod that ``torus launch`` found, or what the environment says."""
    launched = os.environ.get("TORUS_POD")
    return Pod.from_json(launched) if launched else read(os.environ)
