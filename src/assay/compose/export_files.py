"""Files beside an exported model: a script that runs it without assay, and Triton's layout."""

from __future__ import annotations

import keyword
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from assay.config.tree import Leaf, List, Node, Table
from assay.core.code_places import is_of_user
from assay.core.errors import InputError
from assay.formats.export_folder import DATATYPES, ExportSchema, Target


def script_of(schema: ExportSchema, target: Target, construction: str = "") -> str:
    """Return a script that runs the model on the batch beside it, without assay.

    `construction` are the lines that make the model and call it, where weights are exported.
    """
    inputs = ", ".join(f'"{each.name}"' for each in schema.inputs)
    text = {"onnx": _ONNX, "torch-export": _TORCH_EXPORT, "safetensors": _WEIGHTS}[target]
    return text.format(model=schema.model, inputs=inputs, construction=construction or _BY_HAND)


def construction_of(node: Node, part: str, arguments: str) -> str:
    """Return the lines that build the model of a config and call it; "" where only assay can.

    `part` is the path of the module in it, and `arguments` are those of its call.
    """
    imports: dict[str, None] = {}
    expression = _expression(node, imports)
    if not expression or not arguments:
        return ""
    made = f"({expression}).get_submodule({part!r})" if part else expression
    lines = [f"import {name}" for name in imports]
    return "\n".join([*lines, _MADE.format(model=made, arguments=arguments)]) + _COMPARE.format()


def write_triton(folder: Path, schema: ExportSchema, files: Sequence[Path]) -> None:
    """Make the folder one of a model repository of Triton: `config.pbtxt`, and the model in `1/`.

    InputError for a dtype that Triton has no name for.
    """
    lines = ['backend: "onnxruntime"', "max_batch_size: 0  # dims begin with the batch"]
    for side, tensors in (("input", schema.inputs), ("output", schema.outputs)):
        for each in tensors:
            if each.dtype not in DATATYPES:
                what = f"`{each.name}` is {each.dtype}, which Triton does not take."
                raise InputError(what, fix="let the model take and give float32")
            dims = ", ".join("-1" if isinstance(n, str) else str(n) for n in each.shape)
            facts = f'name: "{each.name}" data_type: TYPE_{DATATYPES[each.dtype]} dims: [{dims}]'
            lines.append(f"{side} [{{ {facts} }}]")
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "1").mkdir()
    for file in files:
        shutil.copyfile(file, folder / "1" / file.name)


def _expression(node: Node, imports: dict[str, None]) -> str:
    """Return Python that makes what a node says; "" where it cannot be written."""
    match node:
        case Leaf(value=value):
            is_reference = isinstance(value, str) and (value[:1] == "@" or "${" in value)
            return "" if is_reference else repr(value)
        case List(items=items):
            parts = [_expression(item, imports) for item in items]
            return f"[{', '.join(parts)}]" if all(parts) else ""
        case Table() if node.target is None:
            pairs = {key: _expression(item, imports) for key, item in node.items.items()}
            inside = ", ".join(f"{key!r}: {text}" for key, text in pairs.items())
            return f"{{{inside}}}" if all(pairs.values()) else ""
        case _:
            return _call(node, imports)


def _call(node: Table, imports: dict[str, None]) -> str:
    module = str(node.target).rpartition(".")[0]
    while module and module not in sys.modules:  # a class in a class
        module = module.rpartition(".")[0]
    names = [key for key in node.items if key not in ("type", "args")]
    if not module or any(not key.isidentifier() or keyword.iskeyword(key) for key in names):
        return ""
    imports[module] = None
    parts = [_expression(item, imports) for item in node.args]
    keywords = {key: _expression(node.items[key], imports) for key in names}
    if not all(parts) or not all(keywords.values()):
        return ""
    inside = ", ".join([*parts, *(f"{key}={text}" for key, text in keywords.items())])
    return f"{node.target}({inside})"


def modules_of_user(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the loaded modules of the user's folders: where each goes in a copy, and its file."""
    found: dict[str, Path] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_of_user(file):
            continue
        for folder in folders:
            if Path(file).is_relative_to(folder) and Path(file).suffix == ".py":
                found.setdefault(Path(file).relative_to(folder).as_posix(), Path(file))
                break
    return found


def _head(*imports: str) -> str:
    return "\n".join(
        [
            '"""Run the exported model on the batch beside it, as the model of the record did."""',
            "",
            *imports,
            "",
            "here = Path(__file__).resolve().parent",
            'batch = load_file(here / "example.safetensors")',
            "",
        ]
    )


_PATH = "from pathlib import Path\n"
_ONNX = (
    _head(
        "import os",
        _PATH,
        'os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would report to its maker',
        "import onnxruntime",
        "from safetensors.numpy import load_file",
    )
    + """\
session = onnxruntime.InferenceSession(here / "{model}")
inputs = {{each.name: batch["input." + each.name] for each in session.get_inputs()}}
names = [each.name for each in session.get_outputs()]
for name, output in zip(names, session.run(names, inputs)):
    difference = abs(output.astype(float) - batch["output." + name].astype(float)).max()
    print(name, output.dtype, output.shape, f"difference {{difference:.2g}}")
"""
)
_COMPARE = """\
for name, output in outputs.items():
    difference = (output.double() - batch["output." + name].double()).abs().max()
    print(name, output.dtype, tuple(output.shape), f"difference {{difference:.2g}}")
"""
_TORCH_EXPORT = (
    _head(_PATH, "import torch", "from safetensors.torch import load_file")
    + """\
model = torch.export.load(here / "{model}").module()
outputs = model(*(batch["input." + name] for name in [{inputs}]))
"""
    + _COMPARE
)
_WEIGHTS = (
    _head("import sys", _PATH, "import torch", "from safetensors.torch import load_file")
    + """\
weights = load_file(here / "{model}")
sys.path.insert(0, str(here / "code"))

{construction}"""
)
_MADE = """\

network = {model}
network.load_state_dict(weights)
with torch.no_grad():
    output = network.eval()({arguments})
outputs = {{"output": output}} if isinstance(output, torch.Tensor) else dict(output)
outputs = {{name: outputs[name] for name in outputs if "output." + name in batch}}
"""
_BY_HAND = """\
# Only assay can build this model from its config: build it here, and load its weights.
for name, tensor in weights.items():
    print(name, tensor.dtype, tuple(tensor.shape))
"""
