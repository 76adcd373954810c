# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Runs the command line as ``python -m torus``."""

import sys

from torus.cli import main

sys.exit(main())
