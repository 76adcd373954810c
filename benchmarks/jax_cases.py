# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""The cases that JAX runs: training steps under jit, the others operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Built = tuple[Callable[[], object], int]


def _parameters() -> list[jax.Array]:
    r = np.random.default_rng(0)

    def layer(rows: int, columns: int) -> jax.Array:
        return jnp.asarray(r.uniform(-1, 1, (rows, columns)).astype(np.float32) / np.sqrt(rows))

    return [layer(64, 256), jnp.zeros(256), layer(256, 10), jnp.zeros(10)]


def _loss(p: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    logits = jax.nn.relu(x @ p[0] + p[1]) @ p[2] + p[3]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


def _sgd(state: Any, x: jax.Array, y: jax.Array) -> Any:
    loss, gradients = jax.value_and_grad(_loss)(state, x, y)
    return [p - 0.05 * g for p, g in zip(state, gradients, strict=True)], loss


def _adamw(state: Any, x: jax.Array, y: jax.Array) -> Any:
    parameters, first, second, n = state
    loss, gradients = jax.value_and_grad(_loss)(parameters, x, y)
    n = n + 1
    first = [0.9 * a + 0.1 * g for a, g in zip(first, gradients, strict=True)]
    second = [0.999 * a + 0.001 * g * g for a, g in zip(second, gradients, strict=True)]
    scale, root = 1e-3 / (1 - 0.9**n), jnp.sqrt(1 - 0.999**n)
    parameters = [
        p * (1 - 1e-5) - scale * a / (jnp.sqrt(b) / root + 1e-8)
        for p, a, b in zip(parameters, first, second, strict=True)
    ]
    return (parameters, first, second, n), loss


def _step_case(step: Callable[..., Any], is_adam: bool) -> Callable[[Any], Built]:
    def build(_: Any) -> Built:
        r = np.random.default_rng(1)
        x = jnp.asarray(r.standard_normal((32, 64)).astype(np.float32))
        y = jnp.asarray(r.integers(0, 10, 32))
        compiled = jax.jit(step, donate_argnums=0)
        p = _parameters()
        zeros = [[jnp.zeros_like(a) for a in p] for _ in range(2)]
        state: list[Any] = [(p, *zeros, jnp.float32(0)) if is_adam else p]

        def run() -> None:
            for _ in range(20):
                state[0], _loss_value = compiled(state[0], x, y)
            jax.block_until_ready(state[0])

        return run, 20

    return build


def _values_case(make: Callable[[], Callable[[int], jax.Array]]) -> Callable[[Any], Built]:
    def build(_: Any) -> Built:
        function = make()

        def run() -> None:
            for i in range(50):
                np.asarray(function(i))

        return run, 50

    return build


def _matrix() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))


def _with_matrix(function: Callable[[jax.Array, int], jax.Array]) -> Callable[[Any], Built]:
    def make() -> Callable[[int], jax.Array]:
        x = _matrix()
        return lambda i: function(x, i)

    return _values_case(make)


def multiplications(_: Any) -> Built:
    x = jnp.ones((64, 64))

    def run() -> None:
        y = x
        for _ in range(300):
            y = y * 1.0001
        y.block_until_ready()

    return run, 1


def mixed_chain(_: Any) -> Built:
    r = np.random.default_rng(0)
    x = jnp.asarray((r.standard_normal((64, 64)) * 0.01).astype(np.float32))
    one = jnp.ones((64, 64))
    w = jnp.asarray(np.linalg.qr(r.standard_normal((64, 64)))[0].astype(np.float32))

    def run() -> None:
        y = x
        for _ in range(250):
            y = jax.nn.relu((y * one + x) @ w)
        y.block_until_ready()

    return run, 1


def add_and_wait(_: Any) -> Built:
    x = jnp.ones((8, 8))

    def run() -> None:
        for _ in range(100):
            (x + 1).block_until_ready()

    return run, 100


def add_and_read(_: Any) -> Built:
    s = jnp.ones(())

    def run() -> None:
        for _ in range(100):
            (s + 1).item()

    return run, 100


CASES: dict[str, Callable[[Any], Built | None]] = {
    "mlp_sgd_captured": _step_case(_sgd, False),
    "mlp_adamw_captured": _step_case(_adamw, True),
    "multiplications": multiplications,
    "mixed_chain": mixed_chain,
    "times_i": _with_matrix(lambda x, i: x * i),
    "index": _with_matrix(lambda x, i: x[i] + 0),
    "slice": _with_matrix(lambda x, i: x[i : i + 4] + 0),
    "prefix_sum": _with_matrix(lambda x, n: x[: n + 1].sum()),
    "ones": _values_case(lambda: lambda n: jnp.ones(n + 1) + 1),
    "add_and_wait": add_and_wait,
    "add_and_read": add_and_read,
}
