"""Table of the names that texts of LiBai import, with what stands for each here."""

from __future__ import annotations

from collections.abc import Mapping

from assay.config.older_systems.entries import OlderName
from assay.config.older_systems.libai_schedules import HERE as SCHEDULES

_HERE = "assay.compat.libai"
_LOADERS = ("image_train", "image_test", "nlp_train", "nlp_test", "nlp_train_val_test")
_TORCH = {
    "nn": "torch.nn",
    "optim": "torch.optim",
    "utils.data": "torch.utils.data",
    "tensor": "torch.tensor",
    "Tensor": "torch.Tensor",
    "float32": "torch.float32",
    "float": "torch.float32",
    "int64": "torch.int64",
    "long": "torch.int64",
    "int": "torch.int64",  # the losses of torch take class numbers of 64 bits alone
}


def _entry(target: str) -> OlderName:
    return OlderName(target=target, instead=f"`{target}`")


NAMES: Mapping[str, OlderName] = {
    "libai.config.LazyCall": _entry("assay.config.LazyCall"),
    "libai.config.get_config": OlderName(
        target=f"{_HERE}.loaders.get_config", instead="`get_config` of assay.config"
    ),
    "libai.config.configurable": _entry("assay.build.configurable"),
    "libai.config.instantiate": _entry("assay.build.instantiate"),
    "libai.data.structures.Instance": _entry("assay.engine.Instance"),
    "libai.data.structures.DistTensorData": _entry("assay.engine.DistTensorData"),
    "libai.evaluation.ClsEvaluator": OlderName(
        target=f"{_HERE}.loaders.ClsEvaluator",
        instead="`process.metrics`, with one `assay.engine.Accuracy` for each k",
    ),
    "libai.optim.get_default_optimizer_params": OlderName(
        target=f"{_HERE}.loaders.get_default_optimizer_params",
        instead="`assay.engine.Groups` as the optimizer's `params`, and `train.clip_norm`",
    ),
    **{
        f"{place}.build_{kind}_loader": OlderName(
            target=f"{_HERE}.loaders.build_{kind}_loader", instead="a section [data.NAME]"
        )
        for place in ("libai.data.build", "libai.data")
        for kind in _LOADERS
    },
    "libai.data.datasets.BertDataset": OlderName(
        target=f"{_HERE}.datasets.BertDataset",
        instead="`assay.engine.data.masked_text.MaskedSentencePairs`",
    ),
    "libai.data.datasets.CIFAR100Dataset": OlderName(
        target=f"{_HERE}.datasets.CIFAR100Dataset", instead="`assay.engine.data.images.CIFAR100`"
    ),
    "libai.tokenizer.BertTokenizer": OlderName(
        target=f"{_HERE}.datasets.BertTokenizer", instead="`assay.engine.data.text.WordPieces`"
    ),
    **{
        f"libai.models.{name}": OlderName(
            target=f"{_HERE}.models.{name}", instead=f"`assay.engine.model.bert.{here}`"
        )
        for name, here in {"BertModel": "Bert", "BertForPreTraining": "BertPretraining"}.items()
    },
    **{
        f"flowvision.transforms.{name}": _entry(f"assay.engine.data.images.{name}")
        for name in ("Compose", "Normalize", "RandomAffine", "RandomHorizontalFlip", "ToTensor")
    },
    **{
        f"libai.scheduler.{name}": OlderName(
            target=f"{_HERE}.schedules.{name}", instead=f"`{here}`"
        )
        for name, (here, _) in SCHEDULES.items()
    },
    **{f"oneflow.{name}": _entry(target) for name, target in _TORCH.items()},
    "flowvision.transforms": _entry("assay.engine.data.images"),
    "flowvision.datasets": _entry("assay.engine.data.images"),
}
