# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Abstract tensors, and functions as StableHLO text.

Nothing here runs anything on a device: a function is called once, and what it would do is recorded.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.aot import names


@contextlib.contextmanager
def abstract() -> Iterator[None]:
    """Make tensors on ``"tpu"`` abstract: with shape, strides and dtype, without content.

    Inside, operators on the device are recorded and dropped, tensors take no memory whatever their
    size, and reading one raises. It holds for all threads of the process. Afterwards the tensors
    can be given to `lower`; computing with them is an error, and writing all of one gives it real
    content.

    Raises
    ------
    RuntimeError
        If a graph is being captured.

    Examples
    --------
    >>> with torch_tpu.aot.abstract(), torch.device("tpu"):  # doctest: +SKIP
    ...     model = LlamaForCausalLM(config)
    """
    _C._abstract_begin()
    try:
        yield
    finally:
        _C._abstract_end()


def abstract_like(tensor: torch.Tensor, device: torch.device | str = "tpu") -> torch.Tensor:
    """Return an abstract tensor with the shape, strides and dtype of another.

    Parameters
    ----------
    tensor : torch.Tensor
        On any device, "meta" included; its content is not looked at.
    device : torch.device or str
        Which ``"tpu"`` device it is on.

    Returns
    -------
    torch.Tensor
        With the same ``requires_grad``.
    """
    with abstract():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def is_abstract(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on ``"tpu"`` and has no content."""
    return tensor.device.type == "tpu" and _C._is_abstract(tensor)


@dataclass(frozen=True)
class Missing:
    """An operator that cannot be part of a program."""

    operator: str  # "aten::nonzero"
    reason: str
    line: str  # "model.py:12"; empty when it is not known

    def __str__(self) -> str:
        """Return one line for people."""
        place = f" (at {self.line})" if self.line else ""
        return f"{self.operator}: {self.reason}{place}"


class NotLowered(RuntimeError):  # noqa: N818
    """A function cannot become one program.

    Attributes
    ----------
    missing : list of Missing
        The operators in its way, in order; the first one ended the attempt.
    """

    def __init__(self, missing: list[Missing]) -> None:
        first = missing[0]
        super().__init__(
            f"{first}. A lowered program has no access to the host: operators without a lowering, "
            "and everything that depends on values (item(), if tensor:, nonzero, masks as "
            "indices), must stay outside of it."
        )
        self.missing = missing

    @property
    def operator(self) -> str:
        """The first operator in the way."""
        return self.missing[0].operator

    @property
    def line(self) -> str:
        """The Python line that called it, ``"file:line"``."""
        return self.missing[0].line


@dataclass(frozen=True)
class Slot:
    """An argument or a result of a lowered program."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str  # "parameter", "buffer", "argument", "random", "constant"; of a result also "result"
    alias: int | None = None  # the result that takes an input's memory; the input it came from
    tensor: torch.Tensor | None = field(default=None, repr=False, compare=False)  # of a constant

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Returned:
    """A tensor that a function returned: which output has its elements, and its shape."""

    output: int
    shape: tuple[int, ...]


@dataclass
class Lowered:
    """A function as one program.

    Attributes
    ----------
    text : str
        StableHLO with one public function ``@main``.
    inputs, outputs : list of Slot
        The arguments and results of ``@main``, in order. Arguments that the program does not need
        are not there.
    donated : list of int
        Inputs whose memory a result takes: parameters that are updated in place, caches.
    returned : list of int
        For each tensor on the device in what the function returned, flattened, its place in
        `outputs`.
    result : Any
        What the function returned, with a `Returned` for each of those tensors.
    written : list of tuple of str and int
        What was there before and is written: its name, and its place in `outputs`.
    drawn : int
        How many blocks of four random numbers a run uses up.
    fallbacks : list of Missing
        Operators for which zeros of the right shape stand in; empty unless they were to be
        collected.
    """

    text: str
    inputs: list[Slot]
    outputs: list[Slot]
    donated: list[int]
    returned: list[int]
    result: Any
    written: list[tuple[str, int]]
    drawn: int
    fallbacks: list[Missing]

    def with_shardings(self, shardings: Mapping[int, str], num_partitions: int) -> str:
        """Return the text for several devices.

        Parameters
        ----------
        shardings : mapping of int to str
            For inputs by their number, an ``mhlo.sharding``; the others are left to the compiler.
        num_partitions : int
            How many devices there are.
        """
        from torch_tpu.aot import sharding

        return sharding.annotate(self.text, shardings, num_partitions)


def lower(
    fn: Callable[..., Any],
    *args: Any,
    on_missing: str = "error",
    for_tpu: bool = False,
    **kwargs: Any,
) -> Lowered:
    """Turn a function into one StableHLO program, without running it.

    The function is called once, with all operators on ``"tpu"`` recorded. Tensors that it reads,
    abstract or real, are the program's inputs; what it returns, and what it writes in place to
    tensors that were there before (parameters in an optimizer's step, caches), are its outputs. The
    latter take the memory of the input they replace. So do gradients and optimizer states that the
    step creates, as outputs of their own. Afterwards all tensors hold what they held before.

    Parameters
    ----------
    fn : callable
        A function or module. Modules and optimizers that it refers to, as arguments, in its closure
        or as globals, give the inputs their names.
    *args, **kwargs
        Its arguments.
    on_missing : {"error", "collect"}
        Whether an operator without a lowering raises, or is noted in `Lowered.fallbacks` with zeros
        in its place, so that all of them are found.
    for_tpu : bool
        Whether the program is for a TPU, whatever the plugin here is: products of bfloat16 sum up
        in float32 there without being converted first.

    Returns
    -------
    Lowered

    Raises
    ------
    NotLowered
        If an operator has no lowering, or a value is needed on the host.
    ValueError
        If no result depends on an operator of the device.
    """
    if on_missing not in ("error", "collect"):
        raise ValueError(f'on_missing is "error" or "collect", not {on_missing!r}')
    known = names.Known(fn, args, kwargs)
    lowering = _C._Lowering()
    lowering.begin(on_missing == "collect", for_tpu)
    try:
        # Libraries ask torch.compiler.is_compiling() before they look at values.
        with torch.compiler._compile_session_context():
            returned = _call(fn, args, kwargs)
        made = known.made_meanwhile()
        lowering.end([tensor for _, tensor in (*returned.tensors, *made)])
    except Exception as error:
        missing = [Missing(*entry) for entry in _C._take_missing()]
        if missing:
            raise NotLowered(missing) from error
        raise
    finally:
        lowering.abort()
        known.restore()
    return _describe(lowering, known, returned, made)


def _call(fn: Callable[..., Any], args: Any, kwargs: Any) -> _Result:
    """Call the function; each tensor of its result becomes alone in a storage of its own."""
    leaves, spec = names.flatten(fn(*args, **kwargs))
    result = _Result([], [], spec)
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "tpu":
            result.tensors.append((names.of_path(path) or "result", _alone(leaf)))
            result.leaves.append(Returned(-1, tuple(leaf.shape)))
        else:
            result.leaves.append(leaf)
    return result


@dataclass
class _Result:
    """What a function returned: named tensors, and leaves where those are shapes only."""

    tensors: list[tuple[str, torch.Tensor]]
    leaves: list[Any]
    spec: pytree.TreeSpec

    def described(self, outputs: list[int]) -> Any:
        places = iter(outputs)
        leaves = [
            Returned(next(places), leaf.shape) if isinstance(leaf, Returned) else leaf
            for leaf in self.leaves
        ]
        return pytree.tree_unflatten(leaves, self.spec)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense copy, which costs no operation where the tensor is all of its storage."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def _describe(
    lowering: Any,
    known: names.Known,
    returned: _Result,
    made: list[tuple[str, torch.Tensor]],
) -> Lowered:
    inputs = [_input(raw, known) for raw in lowering.arguments()]
    owners = {slot.alias: i for i, slot in enumerate(inputs) if slot.alias is not None}
    fresh = {_C._storage_key(tensor): (name, "result") for name, tensor in returned.tensors}
    fresh.update({_C._storage_key(tensor): (name, "buffer") for name, tensor in made})
    outputs: dict[int, Slot] = {}
    results: dict[int, int] = {}
    written = []
    for raw in lowering.outputs():
        name, kind = fresh.get(raw["key"]) or known.name(raw["key"])
        if raw["key"] not in fresh:
            written.append((name, raw["result"]))
        number = results[raw["key"]] = raw["result"]
        if number not in outputs:
            outputs[number] = Slot(
                name, tuple(raw["shape"]), raw["dtype"], kind, owners.get(number)
            )
    places = [results[_C._storage_key(tensor)] for _, tensor in returned.tensors]
    return Lowered(
        text=lowering.text(),
        inputs=inputs,
        outputs=[outputs[i] for i in range(len(outputs))],
        donated=[i for i, slot in enumerate(inputs) if slot.alias is not None],
        returned=places,
        result=returned.described(places),
        written=written,
        drawn=lowering.drawn(),
        fallbacks=[Missing(*entry) for entry in _C._take_missing()],
    )


def _input(raw: dict[str, Any], known: names.Known) -> Slot:
    name, kind = known.name(raw["key"]) if raw["kind"] == "storage" else known.number(raw["kind"])
    alias = raw["result"] if raw["result"] >= 0 else None
    return Slot(name, tuple(raw["shape"]), raw["dtype"], kind, alias, raw.get("tensor"))
