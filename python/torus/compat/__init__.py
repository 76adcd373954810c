# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Every architecture of Transformers and Diffusers, small and with random weights, on "tpu".

`catalog` lists what there is to run. `shrink` and `adjust` make a small configuration of a model
type, `inputs` and `special_inputs` what its forward pass takes, `build` puts them together;
`diffusion` and `pipelines` do so for Diffusers. `stages` runs forward, generation and training on
both devices, `trees` compares, `worker` does so for one architecture in a process of its own, and
`report` and `page` write what came out.
"""
