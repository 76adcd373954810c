# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The command line of Torus. The PyTorch device itself is the package ``torch_tpu``."""
