# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""PyTorch's own operator samples (OpInfo), run on device "tpu" against the CPU.

`judge` compares one operator, `sharded` does so on distributed tensors in the processes of `ranks`,
`views` lays tensors out as views, `pool` spreads operators over
child processes so that a crash costs one verdict, `report` writes what came out.
"""
