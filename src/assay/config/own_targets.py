"""Targets of assay that a config may name: they write only into the record of the run.

`FileLogger` of alchemy also makes a link to the record, in a folder inside the working directory.
Classes that save, load or run by a path of their own are left out: a config names them by a
section, or code calls them.
"""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED: Mapping[str, tuple[str, ...]] = {
    module: tuple(names.split())
    for module, names in {
        "assay.engine": """
            AUROC Accuracy Adapted Balanced BatchDigest ByHand ByLength Collect Confusion Constant
            Cycle DistTensorData EMA EarlyStop Evaluate F1 Groups Instance Loader Mean
            Memory ModelWrapper MultiOptimizerStep Noam Norms OptimizerStep
            OwnLoss Perplexity Pipelines Precision Probe Profile Ramp Recall ResetOptimizer
            SaveOutputs ScaledOptimizerStep SetRequiresGrad SetValue StepFunction Subset Supervised
            Task Throughput TorchSchedule WarmupCosine WarmupExponential WarmupLinear
            WarmupMultiStep WarmupPoly WarmupStep Weighted chain padded_vocabulary
        """,
        "assay.engine.callbacks.witness": "ResumeWitness",
        "assay.engine.data.streams": """
            Batch Bucket Concat Filter FlatMap Length Map Mix Prefetch Shuffle SplitByWorker Take
        """,
        "assay.engine.data.map_style": """
            Cache ConcatSequences FilterSequence MapSequence RandomSplit Select SequenceWrapper
            StreamToSequence
        """,
        "assay.plugins": "AutoReport TensorBoard",
        "assay.compat.parts.images": """
            CIFAR100 Compose MNIST Normalize RandomAffine RandomHorizontalFlip ToTensor
        """,
        "assay.compat.parts.masked_text": "MaskedSentencePairs",
        "assay.compat.parts.text": "WordPieces",
        "assay.compat.parts.bert": "Bert BertPretraining",
        "assay.compat.libai.datasets": "BertDataset BertTokenizer CIFAR100Dataset",
        "assay.compat.libai.models": "BertForPreTraining BertModel",
        "assay.compat.libai.loaders": """
            ClsEvaluator EvaluatorPipe build_image_test_loader build_image_train_loader
            build_nlp_test_loader build_nlp_train_loader
        """,
        "assay.compat.libai.schedules": """
            WarmupCosineAnnealingLR WarmupCosineLR WarmupExponentialLR WarmupMultiStepLR
            WarmupPolynomialLR WarmupStepLR
        """,
        "assay.compat.alchemy.model": "DefaultBackwardHandler make_process",
        "assay.compat.alchemy.accelerate": "AccelerateSetup",
        "assay.compat.alchemy.plugins": """
            Backup BasicSetup DisplayRunningInfo FileLogger Seeding TensorboardLogger
        """,
    }.items()
}
"""Names by the package that offers them."""

_CODE = "is used in code, not in a config"

NEVER: Mapping[str, str] = {
    "assay.engine.At": _CODE,
    "assay.engine.OptimizerStepBase": "is a base class",
    "assay.engine.Display": "is set in [display]",
    "assay.engine.Engine": "runs a training",
    "assay.engine.Evaluation": _CODE,
    "assay.engine.Event": _CODE,
    "assay.engine.Every": _CODE,
    "assay.engine.Handler": _CODE,
    "assay.engine.NonFiniteError": "is an exception",
    "assay.engine.Plan": _CODE,
    "assay.engine.Process": "is a base class",
    "assay.engine.Save": "is set in [checkpoint]",
    "assay.engine.Saver": "writes files where it is told to",
    "assay.engine.State": _CODE,
    "assay.engine.Where": _CODE,
    "assay.engine.WorkerError": "is an exception",
    "assay.engine.as_process": _CODE,
    "assay.engine.evaluate": "is set in [evaluate]",
    "assay.engine.every": _CODE,
    "assay.engine.get_state": _CODE,
    "assay.engine.load_checkpoint": "reads any file; [load_weights] says where weights come from",
    "assay.engine.load_weights": "reads any file; [load_weights] says where weights come from",
    "assay.engine.on": _CODE,
    "assay.engine.data.map_style.SequenceStage": "is a base class",
    "assay.engine.data.streams.Pass": _CODE,
    "assay.engine.data.streams.Stream": "is a base class",
    "assay.engine.data.streams.StreamStage": "is a base class",
    "assay.engine.save_weights": "writes files where it is told to",
    "assay.engine.seed_all": "changes generators of the whole process; `seed` sets them",
    "assay.engine.set_state": "changes generators of the whole process; `seed` sets them",
    "assay.engine.unwrap": _CODE,
}
"""What else these packages offer, and why no config may name it."""
