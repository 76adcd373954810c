# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Published figures of TPU chips.

They are peaks from Google's documentation, each with its page; nothing here was measured. A
"device" is what a program is spread over: on TPU7x each chip shows itself as two.

Interconnect: Google gives the sum over all links of a chip, since 2025 counted in both directions
("bidirectional"), before that in one and in bits. Here it is bytes a second in one direction.
"""

from __future__ import annotations

import dataclasses

__all__ = ["CHIPS", "Chip", "of_topology"]

_DOCS = "https://docs.cloud.google.com/tpu/docs"


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip.

    Attributes
    ----------
    name : str
        As topologies spell it: ``"v6e"``.
    bf16_flops, int8_ops, fp8_flops : float
        Peak operations a second of one chip, a multiply-add counted as two; 0 where none is
        published.
    hbm_bytes : float
        Memory of one chip.
    hbm_bandwidth, ici_bandwidth : float
        Bytes a second of one chip: to its memory; to its neighbours, over all links, one way.
    torus_rank : int
        Dimensions of the network.
    source : str
        The page that says so.
    cycle_seconds : float
        What one cycle of the compiler's estimates of kernels is in its estimates of whole programs,
        as it says both of a program without loops; 0 where that was not looked at. It is no clock.
    """

    name: str
    bf16_flops: float
    int8_ops: float
    fp8_flops: float
    hbm_bytes: float
    hbm_bandwidth: float
    ici_bandwidth: float
    torus_rank: int
    source: str
    cycle_seconds: float = 0.0

    def peak_flops(self, dtype: str) -> float:
        """Return the peak of one chip for products of a StableHLO element type.

        float32 is computed in several bfloat16 passes, which `torus.check.analysis` counts.
        """
        if dtype.startswith("f8") and self.fp8_flops:
            return self.fp8_flops
        if dtype in ("i8", "ui8") and self.int8_ops:
            return self.int8_ops
        return self.bf16_flops


def _chip(
    name: str,
    flops: tuple[float, float, float],
    hbm: tuple[float, float],
    ici: float,
    rank: int,
    page: str,
    cycle: float = 0.0,
) -> Chip:
    bf16, int8, fp8 = (t * 1e12 for t in flops)
    memory, bandwidth, source = hbm[0] * 2**30, hbm[1] * 1e9, f"{_DOCS}/{page}"
    return Chip(name, bf16, int8, fp8, memory, bandwidth, ici * 1e9, rank, source, cycle)


# Teraflops (bf16, int8, fp8), memory (GiB, GB/s), interconnect (GB/s one way). Seconds of a cycle:
# the forward pass of Llama 3 8B with four and eight layers on v6e, with four on TPU7x.
CHIPS = {
    chip.name: chip
    for chip in (
        # 275 TFLOPs in bf16 or int8; HBM2 32 GiB, 1200 GB/s; 2400 Gbit/s over six links.
        _chip("v4", (275, 275, 0), (32, 1200), 300, 3, "v4"),
        # 197 TFLOPs, 393 TOPs; 16 GB, 819 GB/s; bidirectional 400 GB/s over four links.
        _chip("v5e", (197, 393, 0), (16, 819), 200, 2, "v5e"),
        # 459 TFLOPs, 918 TOPs; 95 GiB, 2765 GB/s; bidirectional 1200 GB/s over six links.
        _chip("v5p", (459, 918, 459), (95, 2765), 600, 3, "v5p"),
        # 918 TFLOPs, 1836 TOPs; 32 GB, 1638 GB/s; bidirectional 800 GB/s over four links.
        _chip("v6e", (918, 1836, 918), (32, 1638), 400, 2, "v6e", 0.65e-9),
        # 2307 TFLOPs, 4614 in fp8; 192 GiB, 7380 GB/s; bidirectional 1200 GB/s; two devices.
        _chip("tpu7x", (2307, 0, 4614), (192, 7380), 600, 3, "tpu7x", 0.33e-9),
    )
}


def of_topology(name: str) -> Chip | None:
    """Return the chip of a topology such as ``"v6e:2x2"``; None for an unknown one."""
    return CHIPS.get(name.partition(":")[0])
