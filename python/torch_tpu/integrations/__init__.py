# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Adapters for libraries that do not know device "tpu" by themselves.

Each is a module of its own and imports its library only when it is imported itself. Most libraries
need none: they ask ``torch.accelerator`` or take a device by name. ``docs/libraries.md`` says what
works without, ``docs/upstream.md`` which line in which library would make an adapter needless.
"""

from __future__ import annotations

__all__: list[str] = []
