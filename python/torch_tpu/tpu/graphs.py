# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Captured graphs: a stretch of work as one program, run again with one call.

The interface is that of ``torch.cuda``'s graphs. What is recorded between the beginning and the end
of a capture becomes one program. A replay reads what the tensors that were read hold *then* and
writes the tensors that were written; everything else about the captured stretch is fixed: Python
code does not run again, Python numbers and data that came from the host keep their values.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torch_tpu import _C

_POOL = (0, 0)


def graph_pool_handle() -> tuple[int, int]:
    """Return a token for `TPUGraph.capture_begin`.

    Arrays on the device have no fixed addresses, so graphs share memory without it; it is there
    for programs that pass one on.
    """
    return _POOL


def is_current_stream_capturing() -> bool:
    """Return whether a graph is being captured on the current device."""
    return _C._is_capturing(-1)


class TPUGraph:
    """A captured graph, as `torch.cuda.CUDAGraph`.

    Parameters
    ----------
    keep_graph : bool
        Accepted; the program's text is always kept, see `debug_dump`.

    Notes
    -----
    Random numbers go on at each replay as they would in eager mode. An index that is out of range
    is reported at the next wait. A replay is one launch; the arrays that it overwrites are reused
    unless somebody else holds them.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._graph = _C._Graph()
        self._hook: Any = None

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Begin a capture on the current device; prefer the context manager `graph`.

        Parameters
        ----------
        pool : tuple of int, optional
            Accepted; see `graph_pool_handle`.
        capture_error_mode : {"global", "thread_local", "relaxed"}
            Accepted. Waiting for the device is an error in every thread, and what other threads
            record on the device is captured as well.

        Raises
        ------
        RuntimeError
            If a graph is being captured on the device already.
        ValueError
            If the mode is none of these.
        """
        del pool
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise ValueError(
                f"capture_error_mode={capture_error_mode!r} is none of global, thread_local, "
                "relaxed"
            )
        self._graph.begin()
        self._hook = register_optimizer_step_pre_hook(_check_optimizer)

    def capture_end(self) -> None:
        """End the capture and compile the program. Nothing has run yet.

        Raises
        ------
        RuntimeError
            If it cannot be compiled.
        """
        self._forget_hook()
        self._graph.end()
        if self._graph.is_empty():
            warnings.warn(
                "The captured graph is empty: no tensor that is still there was written on the "
                "current device between its beginning and its end.",
                stacklevel=2,
            )

    def instantiate(self) -> None:
        """Do nothing: the program is compiled by `capture_end`."""

    def replay(self) -> None:
        """Run the captured work with what its tensors hold now; does not wait."""
        self._graph.replay()

    def reset(self) -> None:
        """Give up the program, or the capture that is going on."""
        self._forget_hook()
        self._graph.drop()

    def pool(self) -> tuple[int, int]:
        """Return the token of `graph_pool_handle`."""
        return _POOL

    def enable_debug_mode(self) -> None:
        """Do nothing: `debug_dump` always works."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the program, as StableHLO text, to a file.

        It is empty when the program was found in a cache.
        """
        with open(debug_path, "w", encoding="utf-8") as file:
            file.write(self._graph.text())

    def _forget_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


class graph:  # noqa: N801
    """Context manager that captures the work of its block into a graph.

    Parameters
    ----------
    tpu_graph : TPUGraph
        The graph; what it held is given up.
    pool, stream, capture_error_mode
        As for `torch.cuda.graph`: accepted. Work of a device is in one order, whatever the stream.

    Examples
    --------
    >>> g = torch.tpu.TPUGraph()  # doctest: +SKIP
    >>> with torch.tpu.graph(g):  # doctest: +SKIP
    ...     y = model(x)
    >>> x.copy_(batch)  # doctest: +SKIP
    >>> g.replay()  # y holds model(batch)  # doctest: +SKIP
    """

    def __init__(
        self,
        tpu_graph: TPUGraph,
        pool: tuple[int, int] | None = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.tpu_graph = tpu_graph
        self._pool = pool
        self._stream = stream
        self._mode = capture_error_mode
        self._context: Any = None

    def __enter__(self) -> None:
        self._context = contextlib.ExitStack()
        if self._stream is not None:
            self._context.enter_context(torch.tpu.stream(self._stream))
        try:
            self.tpu_graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._context.close()
            raise

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        with self._context:
            if exc_type is None:
                self.tpu_graph.capture_end()
            else:
                self.tpu_graph.reset()


def _check_optimizer(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Refuse a step whose Python numbers would be frozen at those of the captured step."""
    for group in optimizer.param_groups:
        is_here = any(p.device.type == "tpu" for p in group["params"])
        if is_here and not group.get("capturable", True) and not group.get("fused"):
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() is captured with capturable=False: its step "
                "count would stay that of the capture. Make the optimizer with capturable=True, or "
                "with fused=True where it has that."
            )


# ---- callables ----


def make_graphed_callables(
    callables: Callable[..., Any] | Sequence[Callable[..., Any]],
    sample_args: tuple[Any, ...] | Sequence[tuple[Any, ...]],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Make callables whose forward and backward pass is one captured graph each.

    As `torch.cuda.make_graphed_callables`, except that results are snapshots: a later call does not
    change them. What the backward pass needs is kept once, so that a forward call must not be
    repeated before its backward.

    Parameters
    ----------
    callables : torch.nn.Module or function, or a sequence of them
        A module must have no hooks, and its buffers must not require gradients. It is changed in
        place: its graph serves as long as its ``training`` flag is that of this call.
    sample_args : tuple of torch.Tensor, or a sequence of such tuples
        Arguments as later calls will have them: same shapes, dtypes, and ``requires_grad``. May be
        nested. They become the graph's own inputs.
    num_warmup_iters : int
        Ordinary passes before the capture; they do what passes do, such as updating batch
        statistics.
    allow_unused_input : bool
        Whether an input may have no influence on the results.
    pool : tuple of int, optional
        Accepted; see `graph_pool_handle`.

    Returns
    -------
    Callable or tuple of Callable
        One for each callable given.

    Raises
    ------
    RuntimeError
        If the capture is not possible, or autocast is on with its cache of weights.
    """
    del pool
    if torch.is_autocast_enabled("tpu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast cache: use "
            "torch.autocast('tpu', cache_enabled=False)"
        )
    if callable(callables):
        return _graph_one(callables, tuple(sample_args), num_warmup_iters, allow_unused_input)
    if len(callables) != len(sample_args):
        raise ValueError(f"{len(callables)} callables have {len(sample_args)} tuples of arguments")
    return tuple(
        _graph_one(function, tuple(args), num_warmup_iters, allow_unused_input)
        for function, args in zip(callables, sample_args, strict=True)
    )


def _check_module(module: torch.nn.Module) -> None:
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise RuntimeError(
            "register the hooks of a module after make_graphed_callables, not before"
        )
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise RuntimeError("the buffers of a module to be captured must not require gradients")


def _snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same content, which costs no copy: arrays are immutable."""
    source = tensor.detach()
    return torch.empty_like(source).copy_(source)


class _Pass:
    """The captured forward and backward pass of one callable."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        allow_unused: bool,
    ) -> None:
        self._inputs, self.input_spec = pytree.tree_flatten(args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in self._inputs):
            raise TypeError("sample_args must consist of tensors")
        is_module = isinstance(function, torch.nn.Module)
        self.parameters = tuple(function.parameters()) if is_module else ()
        self._forward = TPUGraph()
        with graph(self._forward):
            result = function(*args)
        self._outputs, self.output_spec = pytree.tree_flatten(result)
        if not all(isinstance(leaf, torch.Tensor) for leaf in self._outputs):
            raise TypeError("a callable to be captured must return tensors")
        self._forward.replay()  # what the backward pass is captured with
        self._wanted = [t for t in (*self._inputs, *self.parameters) if t.requires_grad]
        self._backward = TPUGraph()
        self._received: list[torch.Tensor | None] = [None] * len(self._outputs)
        self._gradients: tuple[torch.Tensor | None, ...] = ()
        self._capture_backward(allow_unused)

    def _capture_backward(self, allow_unused: bool) -> None:
        roots = [output for output in self._outputs if output.requires_grad]
        if not roots or not self._wanted:
            return
        self._received = [
            torch.zeros_like(output) if output.requires_grad else None for output in self._outputs
        ]
        with graph(self._backward):
            self._gradients = torch.autograd.grad(
                roots,
                self._wanted,
                [received for received in self._received if received is not None],
                only_inputs=True,
                allow_unused=allow_unused,
            )

    def run_forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        for own, given in zip(self._inputs, inputs, strict=True):
            if own is not given and own.data_ptr() != given.data_ptr():
                own.detach().copy_(given.detach())
        self._forward.replay()
        return tuple(_snapshot(output) for output in self._outputs)

    def run_backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        for own, given in zip(self._received, gradients, strict=True):
            if own is not None and given is not None:
                own.copy_(given)
            elif own is not None:
                own.zero_()
        if self._gradients:
            self._backward.replay()
        computed: Iterator[torch.Tensor | None] = iter(self._gradients)
        return [
            _snapshot(gradient)
            if leaf.requires_grad and (gradient := next(computed, None)) is not None
            else None
            for leaf in (*self._inputs, *self.parameters)
        ]

    def input_count(self) -> int:
        return len(self._inputs)


class _Graphed(torch.autograd.Function):
    """Joins a captured pass to autograd."""

    @staticmethod
    def forward(ctx: Any, captured: _Pass, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.captured = captured
        outputs = captured.run_forward(tensors[: captured.input_count()])
        fixed = [
            out
            for out, own in zip(outputs, captured._outputs, strict=True)
            if not own.requires_grad
        ]
        ctx.mark_non_differentiable(*fixed)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.captured.run_backward(gradients))


def _warm_up(function: Callable[..., Any], args: tuple[Any, ...], count: int) -> None:
    """Run the passes that allocate what is allocated once; gradients go nowhere."""
    leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    if isinstance(function, torch.nn.Module):
        leaves.extend(function.parameters())
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    for _ in range(count):
        outputs = [
            out
            for out in pytree.tree_leaves(function(*args))
            if isinstance(out, torch.Tensor) and out.requires_grad
        ]
        if outputs and wanted:
            torch.autograd.grad(
                outputs, wanted, [torch.zeros_like(out) for out in outputs], allow_unused=True
            )


def _graph_one(
    function: Callable[..., Any], args: tuple[Any, ...], warmup: int, allow_unused: bool
) -> Callable[..., Any]:
    if isinstance(function, torch.nn.Module):
        _check_module(function)
    _warm_up(function, args, warmup)
    captured = _Pass(function, args, allow_unused)

    def graphed(*user_args: Any) -> Any:
        leaves, spec = pytree.tree_flatten(user_args)
        if spec != captured.input_spec:
            raise TypeError("the arguments are not nested as sample_args were")
        outputs = _Graphed.apply(captured, *leaves, *captured.parameters)
        return pytree.tree_unflatten(outputs, captured.output_spec)

    if not isinstance(function, torch.nn.Module):
        return graphed
    training, original = function.training, function.forward

    def forward(*user_args: Any, **kwargs: Any) -> Any:
        if function.training != training or kwargs:
            return original(*user_args, **kwargs)
        return graphed(*user_args)

    function.forward = forward  # type: ignore[method-assign]
    return function
