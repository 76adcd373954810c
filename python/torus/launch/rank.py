# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Become one process of a job: take the chip that is its own, then run the user's program.

``python -m torus.launch.rank PROGRAM...``, started by torchrun. ``TORUS_LAUNCH`` holds a JSON list
with the variables of each local rank. Nothing is loaded here but this file: PyTorch reads them.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Replace this process by the user's program."""
    own = json.loads(os.environ.pop("TORUS_LAUNCH"))[int(os.environ["LOCAL_RANK"])]
    os.environ.update(own)
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])


if __name__ == "__main__":
    main()
