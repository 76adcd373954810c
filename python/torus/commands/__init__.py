# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The commands of ``torus``, one module each; see `torus.cli` for what a module offers."""

COMMANDS = ("cache", "check", "compat", "doctor", "launch", "migrate", "opinfo")
