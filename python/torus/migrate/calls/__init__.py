# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""What becomes of calls; importing the modules fills the table."""

from torus.migrate.calls import data, models, processes, steps  # noqa: F401
from torus.migrate.calls.models import counter
from torus.migrate.calls.steps import compile_decorator
from torus.migrate.calls.table import CALLS, REMOVED

__all__ = ["CALLS", "REMOVED", "compile_decorator", "counter"]
