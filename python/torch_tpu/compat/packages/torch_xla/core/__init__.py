# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""torch_xla.core: see its modules."""
