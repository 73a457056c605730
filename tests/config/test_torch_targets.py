"""Reviewed list of torch's classes and functions: new ones are noticed, honest ones allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_names
from assay.build.target_owners import owner_of
from assay.build.targets import TargetError, resolve
from assay.config import torch_targets
from assay.config.allow_list import can_trust, is_listed, is_reviewed, refuse_by_name

# Of constant names, of submodules by their number or their own key, and of parameters that the
# class made itself.
REVIEWED_CALLS = {
    "DataLoader: from math import ceil",
    "ModuleList: setattr(self, str(idx), module)",
    "ParameterList: getattr(self, str(idx))",
    "ParameterList: setattr(self, str(idx), param)",
    "RNNBase: getattr(self, name)",
    "RNNBase: getattr(self, weight)",
    "RNNBase: getattr(self, wn)",
    "RNNBase: import torch.backends.cudnn.rnn as rnn",
    "RNNBase: setattr(self, name, param)",
    "Sequential: setattr(self, key, module)",
    "interpolate: importlib.import_module('torch._decomp.decompositions')",
    "linear_cross_entropy: from torch.nn.modules.linear_cross_entropy import _linear_cross_entropy_batch_chunked,"
    " _linear_cross_entropy_batch_chunked_no_reduction",
    "max_pool3d_with_indices: importlib.import_module('torch._decomp.decompositions')",
    "pad: importlib.import_module('torch._decomp.decompositions')",
}

# Every public class and function below torch.nn, torch.optim and torch.utils.data that these
# projects name: the
# examples of PyTorch as of 2025-08-25, timm as of 2026-08-08, transformers 5.23.0.
NAMED_BY: dict[str, dict[str, str]] = {
    "examples": {
        "torch.nn": """
            AdaptiveAvgPool2d BCELoss BatchNorm1d BatchNorm2d Conv2d ConvTranspose2d CrossEntropyLoss DataParallel
            Dropout Dropout2d Embedding EmbeddingBag GELU InstanceNorm2d LSTM LSTMCell LayerNorm LeakyReLU Linear
            MSELoss MaxPool2d Module ModuleList MultiheadAttention NLLLoss PReLU Parameter PixelShuffle RNN ReLU
            ReflectionPad2d Sequential Sigmoid Softmax Tanh Transformer
        """,
        "torch.nn.functional": """
            binary_cross_entropy cross_entropy dropout elu interpolate log_softmax max_pool2d nll_loss relu
            scaled_dot_product_attention silu smooth_l1_loss softmax
        """,
        "torch.nn.init": """
            calculate_gain kaiming_normal_ normal_ ones_ orthogonal_ trunc_normal_ uniform_ xavier_normal_
            xavier_uniform_ zeros_
        """,
        "torch.nn.modules.activation": """
            MultiheadAttention ReLU
        """,
        "torch.nn.modules.container": """
            ModuleList
        """,
        "torch.nn.modules.conv": """
            Conv2d
        """,
        "torch.nn.modules.dropout": """
            Dropout
        """,
        "torch.nn.modules.linear": """
            Linear NonDynamicallyQuantizableLinear
        """,
        "torch.nn.modules.normalization": """
            LayerNorm
        """,
        "torch.nn.modules.pixelshuffle": """
            PixelShuffle
        """,
        "torch.nn.modules.rnn": """
            GRU LSTM RNN
        """,
        "torch.nn.modules.sparse": """
            Embedding
        """,
        "torch.nn.modules.transformer": """
            TransformerEncoder TransformerEncoderLayer
        """,
        "torch.nn.parallel": """
            DistributedDataParallel data_parallel
        """,
        "torch.nn.utils": """
            clip_grad_norm_
        """,
        "torch.nn.utils.rnn": """
            pad_sequence
        """,
        "torch.optim": """
            Adadelta Adam AdamW LBFGS Optimizer SGD
        """,
        "torch.optim.lr_scheduler": """
            StepLR
        """,
        "torch.utils.data": """
            DataLoader Dataset Subset random_split
        """,
        "torch.utils.data.distributed": """
            DistributedSampler
        """,
    },
    "timm": {
        "torch.nn": """
            AdaptiveAvgPool2d AdaptiveMaxPool2d AvgPool1d AvgPool2d BatchNorm1d BatchNorm2d CELU ConstantPad2d Conv1d
            Conv2d Conv3d ConvTranspose2d CrossEntropyLoss DataParallel Dropout Dropout2d ELU Embedding Flatten GELU
            GRU GroupNorm Hardsigmoid Hardswish Identity LSTM LayerNorm LeakyReLU Linear LogSoftmax MaxPool2d Mish
            Module ModuleDict ModuleList MultiheadAttention PReLU Parameter RNN ReLU ReLU6 SELU Sequential SiLU
            Sigmoid Softmax SyncBatchNorm TransformerDecoder Unfold Upsample ZeroPad2d
        """,
        "torch.nn.functional": """
            adaptive_avg_pool2d adaptive_max_pool2d affine_grid avg_pool2d batch_norm binary_cross_entropy_with_logits
            celu conv2d cosine_similarity cross_entropy dropout elu fold gelu grid_sample group_norm hardsigmoid
            hardswish interpolate kl_div layer_norm leaky_relu linear log_softmax max_pool2d mish mse_loss normalize
            one_hot pad pixel_shuffle prelu relu relu6 rms_norm scaled_dot_product_attention selu sigmoid silu softmax
            softplus unfold
        """,
        "torch.nn.init": """
            constant_ kaiming_normal_ kaiming_uniform_ normal_ ones_ trunc_normal_ uniform_ xavier_normal_
            xavier_uniform_ zeros_
        """,
        "torch.nn.modules.batchnorm": """
            BatchNorm2d SyncBatchNorm
        """,
        "torch.nn.parallel": """
            DistributedDataParallel
        """,
        "torch.nn.utils": """
            clip_grad_norm_ clip_grad_value_
        """,
        "torch.optim": """
            Adadelta Adagrad Adam AdamW Adamax NAdam Optimizer RAdam RMSprop SGD
        """,
        "torch.optim.lr_scheduler": """
            ReduceLROnPlateau
        """,
        "torch.optim.optimizer": """
            Optimizer
        """,
        "torch.utils.data": """
            DataLoader Dataset DistributedSampler IterableDataset RandomSampler Sampler SequentialSampler
            get_worker_info
        """,
        "torch.utils.data.dataloader": """
            default_collate
        """,
        "torch.utils.data.distributed": """
            DistributedSampler
        """,
    },
    "transformers": {
        "torch.nn": """
            AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveLogSoftmaxWithLoss AvgPool1d AvgPool2d BCELoss
            BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Buffer ConstantPad1d ConstantPad2d Conv1d Conv2d
            Conv3d ConvTranspose1d ConvTranspose2d CrossEntropyLoss DataParallel Dropout Dropout2d ELU Embedding
            Flatten GELU GLU GRUCell GroupNorm Hardsigmoid Hardswish Identity InstanceNorm2d KLDivLoss L1Loss LSTM
            LayerNorm LeakyReLU Linear LogSoftmax MSELoss MaxPool1d MaxPool2d Module ModuleDict ModuleList
            MultiheadAttention PReLU Parameter ParameterDict ParameterList PixelShuffle RMSNorm ReLU ReLU6
            ReflectionPad2d Sequential SiLU Sigmoid SmoothL1Loss Softmax Softplus SyncBatchNorm Tanh Unfold Upsample
            ZeroPad2d
        """,
        "torch.nn.attention": """
            SDPBackend sdpa_kernel
        """,
        "torch.nn.attention.flex_attention": """
            AuxRequest BlockMask create_block_mask flex_attention
        """,
        "torch.nn.functional": """
            ScalingType adaptive_avg_pool2d avg_pool1d avg_pool2d batch_norm binary_cross_entropy_with_logits conv1d
            conv2d conv_transpose1d cosine_similarity cross_entropy ctc_loss dropout dropout2d embedding embedding_bag
            fold gelu glu grid_sample group_norm grouped_mm gumbel_softmax interpolate l1_loss layer_norm leaky_relu
            linear log_softmax logsigmoid max_pool1d max_pool2d mish mse_loss multi_head_attention_forward nll_loss
            normalize one_hot pad relu rms_norm scaled_dot_product_attention scaled_mm sigmoid silu smooth_l1_loss
            softmax softplus tanh unfold
        """,
        "torch.nn.init": """
            constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_ trunc_normal_
            uniform_ xavier_normal_ xavier_uniform_ zeros_
        """,
        "torch.nn.modules": """
            SyncBatchNorm
        """,
        "torch.nn.parallel": """
            DistributedDataParallel
        """,
        "torch.nn.parameter": """
            Parameter
        """,
        "torch.nn.utils": """
            clip_grads_with_norm_ get_total_norm remove_weight_norm weight_norm
        """,
        "torch.nn.utils.parametrizations": """
            weight_norm
        """,
        "torch.nn.utils.parametrize": """
            remove_parametrizations
        """,
        "torch.nn.utils.rnn": """
            pad_sequence
        """,
        "torch.optim": """
            Adagrad Optimizer RMSprop SGD
        """,
        "torch.optim.lr_scheduler": """
            LRScheduler LambdaLR ReduceLROnPlateau
        """,
        "torch.utils.data": """
            DataLoader Dataset IterableDataset RandomSampler Sampler SequentialSampler get_worker_info
        """,
        "torch.utils.data.distributed": """
            DistributedSampler
        """,
    },
}


def named() -> Iterator[str]:
    for places in NAMED_BY.values():
        for module, names in places.items():
            yield from (f"{module}.{name}" for name in names.split())


def test_every_public_name_of_the_installed_torch_is_decided_about() -> None:
    assert torch_names.new_names() == [], (
        "`python tests/torch_names.py` lists them; put each into a table of config/torch_targets.py"
    )


def test_a_name_that_torch_gains_is_noticed_and_is_not_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Invented(torch.nn.Module): ...

    Invented.__module__ = "torch.nn.modules.linear"
    monkeypatch.setattr(torch.nn, "Invented", Invented, raising=False)

    assert torch_names.new_names() == ["torch.nn.Invented"]
    refusal = refuse_by_name("torch.nn.Invented")
    assert refusal is not None and refusal.fix == "assay config trust torch.nn.Invented"


def test_every_allowed_name_is_in_the_torch_that_it_was_reviewed_with() -> None:
    if torch.__version__.partition("+")[0] != torch_targets.REVIEWED[-1]:
        pytest.skip("the tables hold names of other versions too")
    assert torch_names.missing_names() == []


@pytest.mark.thorough
def test_what_is_allowed_computes_and_does_nothing_else() -> None:
    assert torch_names.special_calls() - REVIEWED_CALLS == set()


def test_no_table_contradicts_another() -> None:
    allowed = [
        f"{module}.{name}" for module, names in torch_targets.ALLOWED.items() for name in names
    ]

    assert len(allowed) == len(set(allowed))
    for name in allowed:
        assert can_trust(name), f"{name} is also in NEVER"
        assert name not in torch_targets.ON_TRUST
    for name in torch_targets.NEVER:
        assert not can_trust(f"{name}Any" if name.endswith(".") else name)


@pytest.mark.thorough
def test_what_projects_name_of_torch_is_allowed_or_one_command_away(tmp_path: Path) -> None:
    counts = {"allowed": 0, "on trust": 0}
    for target in sorted(set(named())):
        refusal = refuse_by_name(target)
        if refusal is None:
            assert owner_of(resolve(target, user_dirs=[tmp_path]), user_dirs=[]) == "torch"
            counts["allowed"] += 1
            continue
        assert refusal.fix == f"assay config trust {target}"
        assert callable(resolve(target, user_dirs=[tmp_path], trusted=[target]))
        counts["on trust"] += 1

    assert counts["allowed"] > 150
    assert counts["on trust"] < 40


def test_trust_in_one_name_of_torch_allows_no_other(tmp_path: Path) -> None:
    trusted = [
        "torch.nn.DataParallel",
        "torch.nn.utils",
        "torch.utils.data.datapipes.iter.FileOpener",
        "torch.load",
    ]

    assert (
        resolve("torch.nn.DataParallel", user_dirs=[tmp_path], trusted=trusted)
        is torch.nn.DataParallel
    )
    for target in (
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.utils.clip_grad_norm_",
        "torch.utils.data.datapipes.iter.FileOpener",
        "torch.load",
    ):
        with pytest.raises(TargetError) as caught:
            resolve(target, user_dirs=[tmp_path], trusted=trusted)
        assert caught.value.kind == "target-not-allowed"


@pytest.mark.parametrize(
    "name", ["torch", "torch.nn", "torch.nn.functional", "torch.nn.utils", "torch.hub.load", "os"]
)
def test_neither_a_module_of_torch_nor_what_lies_elsewhere_in_it_can_be_trusted(name: str) -> None:
    assert not can_trust(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch.utils.data.datapipes.dataframe.dataframes.CaptureGetAttr",
        "torch.utils.data.datapipes.dataframe.dataframes.CaptureLikeMock",
        "torch.utils.data.datapipes.iter.routeddecoder.RoutedDecoderIterDataPipe",
        "torch.utils.data.datapipes.iter.fileopener.FileOpenerIterDataPipe",
        "torch.utils.data.IterDataPipe",
        "torch.utils.data.graph.traverse",
        "torch.nn.modules.module.register_module_forward_hook",
    ],
)
def test_what_composes_to_any_code_can_never_be_allowed(name: str, tmp_path: Path) -> None:
    refusal = refuse_by_name(name, [name])

    assert is_reviewed(name) and not is_listed(name) and not can_trust(name)
    assert refusal is not None and "trust" not in refusal.fix
    with pytest.raises(TargetError):
        resolve(name, user_dirs=[tmp_path], trusted=[name])
