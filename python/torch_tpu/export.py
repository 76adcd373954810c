# Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
"""Models as files: StableHLO, weights, and executables for the machines they were compiled for.

`export` makes an `Exported` of a module or of a ``torch.export`` program. It can be called, saved
and loaded, and holds an executable for every target it was compiled for.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C, aot
from torch_tpu.aot import names

__all__ = [
    "Exported",
    "IncompatibleExecutable",
    "Target",
    "export",
    "exported_to_mlir",
    "fx_to_mlir",
    "load",
]

FORMAT = 1
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.Tensor, type(None))
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
)


class IncompatibleExecutable(RuntimeError):  # noqa: N818
    """A file has no executable for the plugin of this process."""


@dataclass(frozen=True)
class Target:
    """What an executable was compiled for: it runs where all of this is the same."""

    platform: str  # "cpu", "tpu"
    version: str  # of the plugin's compiler
    device_kind: str
    topology: str = ""  # "v6e:2x2"; empty for the plugin that compiled it

    def __str__(self) -> str:
        """Return one line for people."""
        where = f"{self.topology} " if self.topology else ""
        return (
            f"{where}({self.platform}, {self.device_kind}, {', '.join(self.version.splitlines())})"
        )

    @classmethod
    def here(cls) -> Target:
        """Return the target that this process can run."""
        version = _C._platform_version()
        if _C._platform() == "cpu":  # has no version of its own: "cpu"
            major, minor = _C._api_version()
            size = os.path.getsize(_C._plugin_path())
            version = f"{version}\nAPI {major}.{minor}\n{size} bytes"
        return cls(_C._platform(), version, _C._device_kind(0))

    def runs_on(self, other: Target) -> bool:
        """Return whether an executable for this target runs on another one."""
        return (self.platform, self.version, self.device_kind) == (
            other.platform,
            other.version,
            other.device_kind,
        )


@dataclass(frozen=True)
class _Argument:
    """What a caller gives at one place: a tensor's shape and dtype, or a value as it is written."""

    shape: tuple[int, ...] = ()
    dtype: str = ""  # "float32"; empty for what is no tensor
    value: str = ""  # of a number or text; empty for what is not compared

    @classmethod
    def of(cls, leaf: Any) -> _Argument:
        if isinstance(leaf, torch.Tensor):
            return cls(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        return cls(value=repr(leaf) if isinstance(leaf, (bool, int, float, complex, str)) else "")

    def __str__(self) -> str:
        """Return words for people."""
        if self.dtype:
            return f"a tensor of {self.dtype} and shape {list(self.shape)}"
        return self.value or "no tensor"


def _leaves(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call, without None, with their names in a lowered program."""
    for prefix, tree in (("arg", args), ("", kwargs)):
        for path, leaf in names.flatten(tree)[0]:
            if leaf is not None:
                yield prefix + names.of_path(path), leaf


class Exported:
    """A function or model as one program, with its weights.

    Made by `export` and `load`. Calling it runs the program with arguments nested and shaped as
    those of the export, wherever they are, on the ``"tpu"`` device that is current at the first
    call. What the model writes is written: its buffers in `state`, arguments in place.

    Attributes
    ----------
    text : str
        The program as StableHLO.
    tpu_text : str
        The same in the form for TPUs: products of bfloat16 sum up in float32.
    inputs, outputs : list of torch_tpu.aot.Slot
        Its arguments and results.
    state : dict of str to torch.Tensor
        The arguments that do not come from the caller: weights, buffers, constants. By name.
    targets : list of Target
        For which it holds executables.
    """

    def __init__(
        self, texts: tuple[str, str], signature: _Signature, state: dict[str, torch.Tensor]
    ) -> None:
        self.text, self.tpu_text = texts
        self.inputs = signature.inputs
        self.outputs = signature.outputs
        self.state = state
        self._signature = signature
        self._executables: dict[Target, bytes] = {}
        self._running: Any = None

    @property
    def targets(self) -> list[Target]:
        """The targets for which there are executables."""
        return list(self._executables)

    def compile(self, topology: str | None = None) -> Target:
        """Make an executable and keep it.

        Parameters
        ----------
        topology : str, optional
            Such as ``"v6e:2x2"``, compiled by libtpu without the hardware. By default for the
            plugin of this process.

        Returns
        -------
        Target

        Raises
        ------
        torch_tpu.aot.LibtpuMissing
            If a topology is named and libtpu is not installed.
        torch_tpu.aot.CompilationRefused
            If its compiler does not take the program.
        """
        if topology is None:
            target = Target.here()
            self._running = self._compiled_here()
            self._executables[target] = self._running.serialize()
            return target
        described = aot.topologies.describe(topology)
        compiled = aot.compile_text(self.tpu_text, topology)
        target = Target("tpu", described.platform_version, described.device_kind, topology)
        self._executables[target] = compiled.serialized
        return target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises
        ------
        IncompatibleExecutable
            If it was loaded from a file without an executable for this plugin.
        ValueError
            If an argument is missing, too many, or differs in shape, dtype or value from that of
            the export.
        """
        given = self._arguments(args, kwargs)
        if self._running is None:
            self._running = self._choose()
        device = f"tpu:{self._running.device()}"
        places = {
            slot.name: _dense(given[slot.name].detach(), device)
            if slot.name in given
            else self._own(slot.name, device)
            for slot in self.inputs
            if slot.kind != "random"
        }
        results = self._running.run(list(places.values()), self._signature.drawn)
        self._write(given, places, results)
        return pytree.tree_map_only(
            aot.Returned,
            lambda returned: results[returned.output].reshape(returned.shape),
            self._signature.result,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `load`: program, weights and executables.

        Parameters
        ----------
        path : path
            Where; ``.zip`` or any other name. A file that is there is replaced as a whole.

        Raises
        ------
        ValueError
            If the result contains something that is neither a tensor nor plain data.
        """
        weights = io.BytesIO()
        torch.save({name: tensor.cpu() for name, tensor in self.state.items()}, weights)
        result = io.BytesIO()
        leaves, spec = pytree.tree_flatten(self._signature.result)
        torch.save([_pack(leaf) for leaf in leaves], result)
        manifest = {
            "format": FORMAT,
            "torch": torch.__version__,
            "inputs": [_describe(slot) for slot in self.inputs],
            "outputs": [_describe(slot) for slot in self.outputs],
            "arguments": {name: asdict(a) for name, a in self._signature.arguments.items()},
            "written": self._signature.written,
            "result": pytree.treespec_dumps(spec),
            "drawn": self._signature.drawn,
            "targets": [asdict(target) for target in self._executables],
        }
        unfinished = f"{os.fspath(path)}.{os.getpid()}.part"
        try:
            self._write_file(unfinished, manifest, weights, result)
            os.replace(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.remove(unfinished)

    def _write_file(
        self, path: str, manifest: dict[str, Any], weights: io.BytesIO, result: io.BytesIO
    ) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("manifest.json", json.dumps(manifest, indent=1))
            file.writestr("program.mlir", self.text)
            if self.tpu_text != self.text:
                file.writestr("program.tpu.mlir", self.tpu_text)
            file.writestr("weights.pt", weights.getvalue(), zipfile.ZIP_STORED)
            file.writestr("result.pt", result.getvalue())
            for i, executable in enumerate(self._executables.values()):
                file.writestr(f"executables/{i}", executable)

    def _loaded(self, program: bytes, is_serialized: bool) -> Any:
        return _C._Executable(
            program,
            is_serialized,
            [
                (
                    slot.dtype,
                    list(slot.shape),
                    -1 if slot.alias is None else slot.alias,
                    slot.kind == "random",
                )
                for slot in self.inputs
            ],
            [(slot.dtype, list(slot.shape), -1, False) for slot in self.outputs],
        )

    def _choose(self) -> Any:
        here = Target.here()
        for target, executable in self._executables.items():
            if target.runs_on(here):
                return self._loaded(executable, True)
        if not self._executables:
            return self._compiled_here()
        others = "; ".join(str(target) for target in self._executables)
        raise IncompatibleExecutable(
            f"this process runs {here}, but the executables are for {others}. Compile the program "
            "for this plugin first: exported.compile()"
        )

    def _compiled_here(self) -> Any:
        is_tpu = Target.here().platform == "tpu"
        return self._loaded((self.tpu_text if is_tpu else self.text).encode(), False)

    def _arguments(self, args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the caller's tensors by the names of their inputs."""
        wanted = self._signature.arguments
        given = dict(_leaves(args, kwargs))
        missing = [name for name in wanted if name not in given]
        surplus = [name for name in given if name not in wanted]
        if missing:
            raise ValueError(f"the program also needs {', '.join(missing)}")
        if surplus:
            raise ValueError(
                f"the program was exported without {', '.join(surplus)}; it takes "
                f"{', '.join(wanted) or 'no argument'}"
            )
        for name, leaf in given.items():
            if _Argument.of(leaf) != wanted[name]:
                raise ValueError(
                    f"{name} must be {wanted[name]}, got {_Argument.of(leaf)}: a program is for "
                    "one set of sizes and values; export it for this one"
                )
        return {name: leaf for name, leaf in given.items() if isinstance(leaf, torch.Tensor)}

    def _own(self, name: str, device: str) -> torch.Tensor:
        tensor = self.state[name]
        if tensor.device != torch.device(device):
            tensor = self.state[name] = _dense(tensor, device)
        return tensor

    def _write(
        self,
        given: dict[str, torch.Tensor],
        places: dict[str, torch.Tensor],
        results: list[torch.Tensor],
    ) -> None:
        """Bring what the program wrote to where it belongs, unless it is there already."""
        in_place = {slot.name: slot.alias for slot in self.inputs}
        for name, output in self._signature.written:
            if name in given:
                with torch.no_grad():
                    given[name].copy_(results[output].reshape(given[name].shape))
            elif name not in places:
                self.state[name] = results[output].clone()
            elif in_place[name] != output:
                places[name].copy_(results[output])


@dataclass
class _Signature:
    """How a program is called."""

    inputs: list[aot.Slot]
    outputs: list[aot.Slot]
    arguments: dict[str, _Argument]
    result: Any
    written: list[tuple[str, int]]
    drawn: int


def _dense(tensor: torch.Tensor, device: str = "tpu") -> torch.Tensor:
    """Return the elements in order, alone in a storage on the device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(tensor)


def _content(tensor: torch.Tensor, slot: aot.Slot) -> torch.Tensor:
    """Return all of a tensor's storage, as a program sees it: strides are the program's matter."""
    count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    row = tensor.detach().resolve_conj().resolve_neg().as_strided((count,), (1,), 0)
    return _dense(row.view(slot.dtype).reshape(slot.shape))


def _describe(slot: aot.Slot) -> dict[str, Any]:
    return {
        "name": slot.name,
        "shape": list(slot.shape),
        "dtype": str(slot.dtype).removeprefix("torch."),
        "kind": slot.kind,
        "alias": slot.alias,
    }


def _slot(raw: Mapping[str, Any]) -> aot.Slot:
    dtype = getattr(torch, raw["dtype"])
    return aot.Slot(raw["name"], tuple(raw["shape"]), dtype, raw["kind"], raw["alias"])


def _pack(leaf: Any) -> Any:
    """Return a leaf of a result as plain data: a returned tensor is a pair of number and shape."""
    if isinstance(leaf, aot.Returned):
        return ("output", leaf.output, list(leaf.shape))
    if not isinstance(leaf, _PLAIN):
        raise ValueError(
            f"the result contains a {type(leaf).__name__}, which a file cannot hold: let the model "
            "return tensors, numbers and texts in lists and dictionaries"
        )
    return ("value", leaf)


def _unpack(packed: tuple[Any, ...]) -> Any:
    if packed[0] == "output":
        return aot.Returned(packed[1], tuple(packed[2]))
    return packed[1]


# ---- making ----


def export(
    model: Callable[..., Any] | torch.export.ExportedProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Exported:
    """Turn a model into one program.

    Parameters
    ----------
    model : torch.export.ExportedProgram, torch.nn.Module or function
        Its tensors may be anywhere; those of a module must be on ``"tpu"``.
    args : tuple, optional
        Arguments whose shapes the program has. By default those of the ``torch.export`` program.
    kwargs : dict, optional
        The same.

    Returns
    -------
    Exported

    Raises
    ------
    torch_tpu.aot.NotLowered
        If an operator has no lowering, or a value is needed on the host.

    Examples
    --------
    >>> program = torch.export.export(model, (x,))  # doctest: +SKIP
    >>> exported = torch_tpu.export.export(program)  # doctest: +SKIP
    >>> exported.compile("v6e:2x2")  # doctest: +SKIP
    >>> exported.save("model.torus")  # doctest: +SKIP
    """
    if isinstance(model, torch.export.ExportedProgram):
        model, args, kwargs = _module_of(model, args, kwargs)
    args, kwargs = _to_device((args or (), kwargs or {}))
    with torch.no_grad():
        lowered = aot.lower(model, *args, **kwargs)
        tpu_text = aot.lower(model, *args, for_tpu=True, **kwargs).text
    arguments = {name: _Argument.of(leaf) for name, leaf in _leaves(args, kwargs)}
    signature = _Signature(
        [replace(slot, tensor=None) for slot in lowered.inputs],
        lowered.outputs,
        arguments,
        lowered.result,
        lowered.written,
        lowered.drawn,
    )
    return Exported((lowered.text, tpu_text), signature, _state_of(model, lowered, arguments))


def _module_of(
    program: torch.export.ExportedProgram,
    args: tuple[Any, ...] | None,
    kwargs: dict[str, Any] | None,
) -> tuple[Any, Any, Any]:
    from torch.export.passes import move_to_device_pass

    examples, named = program.example_inputs or ((), {})
    given = (examples, named) if args is None and kwargs is None else (args or (), kwargs or {})
    return move_to_device_pass(_copy_of(program), "tpu").module(), *given


def _copy_of(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program that can be changed, with the same tensors."""
    own = copy.copy(program)
    own._graph_module = copy.deepcopy(program.graph_module)
    own._state_dict = dict(program.state_dict)
    own._constants = dict(program.constants)
    # A copied graph renames what is called like something of Python's; the signature has the names.
    for node, original in zip(own.graph.nodes, program.graph.nodes, strict=True):
        node.name = original.name
    own.graph_module.recompile()
    return own


def _to_device(tree: Any) -> Any:
    """Return the tree with its tensors dense, each in a storage of its own, as calls bring them."""
    return pytree.tree_map_only(torch.Tensor, lambda t: _dense(t.detach()), tree)


def _state_of(
    model: Any, lowered: aot.Lowered, arguments: Mapping[str, _Argument]
) -> dict[str, torch.Tensor]:
    known: dict[str, torch.Tensor] = {}
    if isinstance(model, torch.nn.Module):
        for name, tensor, _ in names.tensors_of(model):
            known.setdefault(name, tensor)
    state = {}
    for slot in lowered.inputs:
        tensor = slot.tensor if slot.tensor is not None else known.get(slot.name)
        if slot.kind == "random" or slot.name in arguments:
            continue
        if tensor is None:
            raise ValueError(
                f"the function reads a tensor ({slot.dtype}, shape {list(slot.shape)}) that is "
                "neither an argument nor a parameter or buffer of the module: pass it"
            )
        state[slot.name] = _content(tensor, slot)
    return state


def exported_to_mlir(program: torch.export.ExportedProgram) -> str:
    """Return a ``torch.export`` program as StableHLO text.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        With example inputs.

    Returns
    -------
    str
    """
    return export(program).text


def fx_to_mlir(gm: torch.fx.GraphModule, args: tuple[Any, ...]) -> str:
    """Return a graph of ATen operators as StableHLO text.

    Parameters
    ----------
    gm : torch.fx.GraphModule
        Its parameters on ``"tpu"``.
    args : tuple
        Inputs whose shapes the program has.

    Returns
    -------
    str
    """
    return aot.lower(gm, *_to_device(args)).text


def load(path: str | os.PathLike[str]) -> Exported:
    """Read a file of `Exported.save`.

    A file holds code for the device: load only what you trust. It needs nothing of the program that
    made it.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Exported

    Raises
    ------
    ValueError
        If it is no such file, or was written by a newer Torus.
    """
    try:
        with zipfile.ZipFile(path) as file:
            manifest = json.loads(file.read("manifest.json"))
            if manifest["format"] <= FORMAT:
                return _read(file, manifest)
    except _DAMAGE as error:
        raise ValueError(
            f"{os.fspath(path)} is not an exported program, or is damaged: {error}"
        ) from error
    raise ValueError(
        f"{os.fspath(path)} has format {manifest['format']}, and this version reads up to "
        f"{FORMAT}: update torus-tpu"
    )


def _read(file: zipfile.ZipFile, manifest: Mapping[str, Any]) -> Exported:
    leaves = torch.load(io.BytesIO(file.read("result.pt")), weights_only=True)
    signature = _Signature(
        [_slot(raw) for raw in manifest["inputs"]],
        [_slot(raw) for raw in manifest["outputs"]],
        {
            name: _Argument(tuple(raw["shape"]), raw["dtype"], raw["value"])
            for name, raw in manifest["arguments"].items()
        },
        pytree.tree_unflatten(map(_unpack, leaves), pytree.treespec_loads(manifest["result"])),
        [(name, output) for name, output in manifest["written"]],
        manifest["drawn"],
    )
    text = file.read("program.mlir").decode()
    has_other = "program.tpu.mlir" in file.namelist()
    exported = Exported(
        (text, file.read("program.tpu.mlir").decode() if has_other else text),
        signature,
        torch.load(io.BytesIO(file.read("weights.pt")), weights_only=True),
    )
    for i, raw in enumerate(manifest["targets"]):
        exported._executables[Target(**raw)] = file.read(f"executables/{i}")
    return exported
