# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What ``torus check`` is made of: models, sharding plans, analysis, reports."""
