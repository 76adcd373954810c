# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""One process for each TPU chip: `plan` works out what to set, `rank` sets it in each process."""
