"""Script beside an exported model, which runs it without assay."""

from __future__ import annotations

from assay.formats.export_folder import ExportSchema, Target


def script_of(schema: ExportSchema, target: Target) -> str:
    """Return a script that runs the model on the batch beside it, without assay.

    Of weights alone it lists the tensors: the code that builds their model is the user's.
    """
    inputs = ", ".join(f'"{each.name}"' for each in schema.inputs)
    text = {"onnx": _ONNX, "torch-export": _TORCH_EXPORT, "safetensors": _WEIGHTS}[target]
    return text.format(model=schema.model, inputs=inputs)


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
_TORCH_EXPORT = (
    _head(_PATH, "import torch", "from safetensors.torch import load_file")
    + """\
model = torch.export.load(here / "{model}").module()
outputs = model(*(batch["input." + name] for name in [{inputs}]))
for name, output in outputs.items():
    difference = (output.double() - batch["output." + name].double()).abs().max()
    print(name, output.dtype, tuple(output.shape), f"difference {{difference:.2g}}")
"""
)
_WEIGHTS = """\
# Build the model with your own code, and load these weights into it.
from pathlib import Path

from safetensors.torch import load_file

for name, tensor in load_file(Path(__file__).resolve().parent / "{model}").items():
    print(name, tensor.dtype, tuple(tensor.shape))
"""
