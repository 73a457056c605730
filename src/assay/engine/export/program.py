"""Models written by torch's own exporters and run again; errors name module and line."""

from __future__ import annotations

import io
import linecache
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.code_places import is_of_user
from assay.core.errors import InputError, MissingExtraError
from assay.core.regular_file import refuse_irregular
from assay.engine.checkpoint.tensor_file import read_tensors
from assay.engine.export.interface import FlatModel, Interface
from assay.formats.onnx_model import explain_onnx_error, load_onnxruntime, open_onnx

ONE_FILE_BYTES = 3 << 29
"""Size of the weights up to which an ONNX model is one file: protobuf ends at 2 GiB."""

Runner = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Runs an exported model on a batch: inputs by name to outputs by name."""

_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def require_onnx() -> None:
    """Raise MissingExtraError unless ONNX models can be written and run here."""
    try:
        for name in ("onnx", "onnxscript"):  # an extra, which need not be there
            import_module(name)
        load_onnxruntime()
    except ImportError:
        raise MissingExtraError("An export to ONNX", extra="export") from None


def trace_program(model: nn.Module, interface: Interface) -> torch.export.ExportedProgram:
    """Return the model as a graph of torch; it is to be in eval mode.

    InputError for what no graph can hold, with module and line.
    """
    flat = FlatModel(model, interface).eval()
    tensors = tuple(_widen(tensor, interface, name) for name, tensor in interface.example.items())
    names = {name for axes in interface.axes.values() for name in axes.values()}
    lengths = {name: torch.export.Dim(name, min=1) for name in names}
    shapes = tuple(
        {axis: lengths[length] for axis, length in interface.axes.get(name, {}).items()}
        for name in interface.example
    )
    try:
        with torch.no_grad(), _silence_torch():
            return torch.export.export(flat, tensors, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # of any kind: torch runs the code of the model on stand-ins
        raise _explain_trace_error(error, model, interface) from error


def write_onnx(
    program: torch.export.ExportedProgram, interface: Interface, folder: Path
) -> list[Path]:
    """Write a graph as `model.onnx`, its weights beside it where they are large.

    InputError for an operation that ONNX lacks, with module and line.
    """
    path = folder / "model.onnx"
    weights = {id(each): each for each in program.state_dict.values()}.values()
    is_large = sum(each.numel() * each.element_size() for each in weights) > ONE_FILE_BYTES
    shapes = tuple(dict(interface.axes.get(name, {})) for name in interface.example)
    try:
        with torch.no_grad(), _silence_torch():
            written = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(interface.example),
                output_names=list(interface.expected),
                dynamic_shapes=(shapes,),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise _explain_onnx_error(error) from error
    assert written is not None
    for node in written.model.graph.all_nodes():
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)  # lines and paths of here
    written.save(path, external_data=is_large)
    return sorted(folder.glob("model.onnx*"))


def write_program(program: torch.export.ExportedProgram, folder: Path) -> list[Path]:
    """Write a graph as `model.pt2`."""
    path = folder / "model.pt2"
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # lines and paths of here
    content = io.BytesIO()  # torch's own writer says nothing of a full disk
    with _silence_torch():
        torch.export.save(program, content)
    path.write_bytes(content.getbuffer())
    return [path]


def write_weights(model: nn.Module, folder: Path) -> list[Path]:
    """Write the weights alone as `model.safetensors`; what several modules share, for each."""
    from safetensors.torch import save

    path = folder / "model.safetensors"
    tensors = model.state_dict().items()
    path.write_bytes(save({name: each.detach().clone().contiguous() for name, each in tensors}))
    return [path]


def run_onnx(path: Path, interface: Interface) -> Runner:
    """Return what runs an ONNX model on the CPU."""
    session = open_onnx(path)
    taken = [each.name for each in session.get_inputs()]

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            given = {name: np.ascontiguousarray(inputs[name].detach().numpy()) for name in taken}
            outputs = session.run(list(interface.expected), given)
        except Exception as error:  # of C++; or a dtype such as bfloat16, which numpy lacks
            raise explain_onnx_error(error, path) from error
        tensors = (torch.from_numpy(np.asarray(output)) for output in outputs)
        return dict(zip(interface.expected, tensors, strict=True))

    return run


def run_program(path: Path, interface: Interface) -> Runner:
    """Return what runs a graph of torch."""
    refuse_irregular(path)
    return _runner(torch.export.load(path).module(), interface)


def run_weights(path: Path, fresh: nn.Module, interface: Interface) -> Runner:
    """Return what runs a newly built model with the weights of a file."""
    fresh.load_state_dict(read_tensors(path))
    return _runner(FlatModel(fresh, interface).eval(), interface)


def _runner(model: Callable[..., Any], interface: Interface) -> Runner:
    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(model(*(inputs[name] for name in interface.example)))

    return run


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Keep torch's notes on its own exporters from the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    unread = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(unread), redirect_stderr(unread):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _widen(tensor: Tensor, interface: Interface, name: str) -> Tensor:
    """Return a tensor to trace with: an axis that may change must not be of length 1."""
    for axis in interface.axes.get(name, {}):
        if tensor.shape[axis] == 1:
            tensor = torch.cat([tensor, tensor], dim=axis)
    return tensor


def _explain_trace_error(error: Exception, model: nn.Module, interface: Interface) -> InputError:
    """Return the error for a model of which torch can make no graph."""
    kind = type(model).__name__
    where, code = _place_of(error, model)
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return InputError(
            f"{kind} decides by the values of a tensor, which no export follows: `{code}`.",
            where=where,
            fix="Compute both and choose with torch.where; or write it with torch.cond.",
        )
    text = str(error)
    if "Constraints violated" in text or "ConstraintViolation" in type(error).__name__:
        fixed = "; ".join(re.findall(r"^  (\w+ = \d+)$", text, re.MULTILINE))
        return InputError(
            f"{kind} works for one size only{f': {fixed}' if fixed else ''}.",
            where=where,
            fix="Let it take sizes from its input, as in `x.reshape(x.shape[0], -1)`; or"
            " --static exports it for that size.",
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return InputError(
        f"torch.export cannot follow {kind}: {type(error).__name__}: {first}",
        where=where,
        fix="Write it with operations of torch; or --format safetensors keeps the weights alone.",
    )


def _place_of(error: BaseException, model: nn.Module) -> tuple[str, str]:
    """Return `file:line, in module` of the user's line that failed, and its code."""
    names = {id(module): name for name, module in model.named_modules()}
    place, code, module = "", "", ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_of_user(file):
            place, code = f"{file}:{line}", linecache.getline(file, line).strip()
            own = frame.f_locals.get("self")
            if id(own) in names:
                module = _spell_module(names[id(own)], type(own).__name__)
    return ", in ".join(filter(None, [place, module])), code


def _explain_onnx_error(error: Exception) -> InputError:
    """Return the error for an operation that ONNX has no word for."""
    nodes = [node for node in _nodes_in_frames(error) if node.op == "call_function"]
    if not nodes:
        first = str(error).strip().partition("\n")[0]
        return InputError(f"torch.onnx cannot write this model: {first}", fix=_NO_ONNX)
    node = nodes[-1]
    return InputError(
        f"ONNX has no operation for `{node.target}`.", where=_place_of_node(node), fix=_NO_ONNX
    )


_NO_ONNX = "Write it with other operations; or --format torch-export, which has all of torch's."


def _nodes_in_frames(error: BaseException | None) -> Iterator[torch.fx.Node]:
    """Yield the nodes among the variables of the frames of an error, and of its causes.

    torch's exporter names the operation that failed only as one of them.
    """
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            yield from (each for each in frame.f_locals.values() if type(each) is torch.fx.Node)
        error = error.__cause__ or error.__context__


def _place_of_node(node: torch.fx.Node) -> str:
    """Return file, line and module of a node of a graph, as far as it knows them."""
    places = _PLACE.finditer(node.meta.get("stack_trace") or "")
    lines = [f"{m['file']}:{m['line']}" for m in places if is_of_user(m["file"])]
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    name = kind if isinstance(kind, str) else kind.__name__
    module = _spell_module(path.removeprefix("model").lstrip("."), name.rpartition(".")[2])
    return ", in ".join([*lines[-1:], module])


def _spell_module(path: str, kind: str) -> str:
    return f"model.{path} ({kind})" if path else f"model ({kind})"
