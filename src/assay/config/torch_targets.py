"""Targets of torch that a config may name: they compute on their arguments, nothing else.

Reviewed by hand, name by name. A listed target opens no file, imports nothing, decodes nothing,
traces nothing and looks up no attribute by a name that it is given; if it takes a callable, that
comes from a config as a listed target too. `tests/torch_names.py` tells which public names of the
installed torch are in none of the three tables.
"""

from __future__ import annotations

from collections.abc import Mapping

PLACES = ("torch.nn", "torch.optim", "torch.utils.data")
"""Packages of torch in which configs look for targets."""

REVIEWED = (
    "2.6.0",
    "2.7.0",
    "2.7.1",
    "2.8.0",
    "2.9.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.0",
    "2.13.0",
)
"""Versions of torch whose public names were reviewed. A name need not be in all of them."""

ALLOWED: Mapping[str, tuple[str, ...]] = {
    module: tuple(names.split())
    for module, names in {
        "torch.nn": """
            AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d
            AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d
            BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear Buffer
            CELU CTCLoss ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
            ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss
            CosineSimilarity CrossEntropyLoss CrossMapLRN2d
            Dropout Dropout1d Dropout2d Dropout3d
            ELU Embedding EmbeddingBag
            FeatureAlphaDropout Flatten Fold FractionalMaxPool2d FractionalMaxPool3d
            GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm
            Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss
            Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d
            KLDivLoss
            L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d
            LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
            LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear LinearCrossEntropyLoss
            LinearCrossEntropyOptions LocalResponseNorm LogSigmoid LogSoftmax
            MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish
            ModuleDict ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention
            NLLLoss NLLLoss2d
            PReLU PairwiseDistance Parameter ParameterList PixelShuffle PixelUnshuffle PoissonNLLLoss
            RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d
            ReplicationPad2d ReplicationPad3d
            SELU Sequential SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink
            Softsign SyncBatchNorm
            Tanh Tanhshrink Threshold Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
            TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss
            Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d
            ZeroPad1d ZeroPad2d ZeroPad3d
        """,
        "torch.nn.functional": """
            adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
            adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_max_pool3d
            adaptive_max_pool3d_with_indices affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d
            batch_norm bilinear binary_cross_entropy binary_cross_entropy_with_logits
            celu celu_ channel_shuffle conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
            cosine_embedding_loss cosine_similarity cross_entropy ctc_loss
            dropout dropout1d dropout2d dropout3d
            elu elu_ embedding embedding_bag
            feature_alpha_dropout fold fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d
            fractional_max_pool3d_with_indices
            gaussian_nll_loss gelu glu grid_sample group_norm grouped_mm gumbel_softmax
            hardshrink hardsigmoid hardswish hardtanh hardtanh_ hinge_embedding_loss huber_loss
            instance_norm interpolate kl_div
            l1_loss layer_norm leaky_relu leaky_relu_ linear linear_cross_entropy local_response_norm log_softmax
            logsigmoid lp_pool1d lp_pool2d lp_pool3d
            margin_ranking_loss max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
            max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward
            multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
            native_channel_shuffle nll_loss normalize one_hot
            pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu
            relu relu6 relu_ rms_norm rrelu rrelu_
            scaled_dot_product_attention scaled_grouped_mm scaled_mm selu selu_ sigmoid silu smooth_l1_loss
            soft_margin_loss softmax softmin softplus softshrink softsign
            tanh tanhshrink threshold threshold_ triplet_margin_loss triplet_margin_with_distance_loss
            unfold upsample upsample_bilinear upsample_nearest
        """,
        "torch.nn.init": """
            calculate_gain constant constant_ dirac dirac_ eye eye_ kaiming_normal kaiming_normal_ kaiming_uniform
            kaiming_uniform_ normal normal_ ones_ orthogonal orthogonal_ sparse sparse_ trunc_normal_ uniform uniform_
            xavier_normal xavier_normal_ xavier_uniform xavier_uniform_ zeros_
        """,
        "torch.optim": """
            ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam
        """,
        "torch.optim.lr_scheduler": """
            ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR LambdaLR
            LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau SequentialLR StepLR
        """,
        "torch.optim.swa_utils": """
            AveragedModel SWALR get_ema_avg_fn get_ema_multi_avg_fn get_swa_avg_fn get_swa_multi_avg_fn
        """,
        "torch.utils.data": """
            BatchSampler ChainDataset ConcatDataset DataLoader DistributedSampler RandomSampler SequentialSampler
            StackDataset Subset SubsetRandomSampler TensorDataset WeightedRandomSampler default_collate default_convert
        """,
    }.items()
}
"""Names by the public module that they are found in."""

ON_TRUST: tuple[str, ...] = (
    # Base classes: there is nothing to configure in them.
    "torch.nn.Container",
    "torch.nn.Module",
    "torch.nn.RNNBase",
    "torch.nn.RNNCellBase",
    "torch.nn.modules.lazy.LazyModuleMixin",
    "torch.nn.modules.linear.NonDynamicallyQuantizableLinear",
    "torch.optim.Optimizer",
    "torch.optim.lr_scheduler.LRScheduler",
    "torch.utils.data.Dataset",
    "torch.utils.data.IterableDataset",
    "torch.utils.data.Sampler",
    # Sets attributes of itself by names that it is given.
    "torch.nn.ParameterDict",
    # Objects that hold no value yet, or that only a module makes.
    "torch.nn.UninitializedBuffer",
    "torch.nn.UninitializedParameter",
    "torch.nn.factory_kwargs",
    "torch.nn.parameter.UninitializedTensorMixin",
    # Kernels and masks that code chooses; some compile what they are given.
    "torch.nn.attention.",
    # Several processes: assay divides a run itself, and these open connections of their own.
    "torch.nn.DataParallel",
    "torch.nn.parallel.",
    # Changes of a model or of its gradients, made in code around a training.
    "torch.nn.utils.",
    "torch.optim.swa_utils.update_bn",
    # One step of an optimizer as a function, and other parts that classes above are made of.
    "torch.nn.functional.ScalingType",
    "torch.nn.functional.SwizzleType",
    "torch.nn.modules.batchnorm.sync_batch_norm",
    "torch.nn.modules.rnn.apply_permutation",
    "torch.nn.parameter.is_lazy",
    *(
        f"torch.optim.{name}.{name}"
        for name in ["adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam"]
    ),
    *(f"torch.optim.{name}.{name}" for name in ["radam", "rmsprop", "rprop", "sgd"]),
    "torch.utils.data.dataset.randperm",
    "torch.utils.data.get_worker_info",
    "torch.utils.data.random_split",
)
"""What a project may allow by its full name, as in `assay config trust torch.nn.DataParallel`. A final dot: all below.

So is what no table holds: the new names of a torch that is newer than those in REVIEWED.
"""

_PIPES = "belongs to torch's data pipes, which call, import, open and unpickle"
_INSIDE = "is what torch itself is made of"
_QUANTIZED = "belongs to quantized models, which are made in code"

NEVER: Mapping[str, str] = {
    "torch.nn.backends.": _INSIDE,
    "torch.nn.cpp.": "wraps objects of compiled extensions",
    "torch.nn.functional.assert_int_or_pair": _INSIDE,
    "torch.nn.functional.boolean_dispatch": "calls whatever it is given",
    "torch.nn.functional.handle_torch_function": "calls whatever it is given",
    "torch.nn.functional.has_torch_function": _INSIDE,
    "torch.nn.functional.has_torch_function_unary": _INSIDE,
    "torch.nn.functional.has_torch_function_variadic": _INSIDE,
    "torch.nn.grad.": _INSIDE,
    "torch.nn.intrinsic.": _QUANTIZED,
    **{
        f"torch.nn.modules.module.register_module_{what}": "registers a hook for all modules of the process"
        for what in [
            "backward_hook",
            "buffer_registration_hook",
            "forward_hook",
            "forward_pre_hook",
            "full_backward_hook",
            "full_backward_pre_hook",
            "module_registration_hook",
            "parameter_registration_hook",
        ]
    },
    "torch.nn.modules.utils.": _INSIDE,
    "torch.nn.parallel.replicate.": _INSIDE,
    "torch.nn.qat.": _QUANTIZED,
    "torch.nn.quantizable.": _QUANTIZED,
    "torch.nn.quantized.": _QUANTIZED,
    "torch.optim.optimizer.register_optimizer_step_post_hook": "registers a hook for all optimizers of the process",
    "torch.optim.optimizer.register_optimizer_step_pre_hook": "registers a hook for all optimizers of the process",
    "torch.optim.swap_in_optimizer_params_and_state": "exchanges the state of objects that it is given",
    "torch.utils.data.DFIterDataPipe": _PIPES,
    "torch.utils.data.DataChunk": _PIPES,
    "torch.utils.data.IterDataPipe": _PIPES,
    "torch.utils.data.MapDataPipe": _PIPES,
    "torch.utils.data.argument_validation": _PIPES,
    "torch.utils.data.backward_compatibility.": _INSIDE,
    "torch.utils.data.datapipes.": _PIPES,
    "torch.utils.data.functional_datapipe": _PIPES,
    "torch.utils.data.graph.": "pickles what it is given",
    "torch.utils.data.graph_settings.": "pickles what it is given",
    "torch.utils.data.guaranteed_datapipes_determinism": _PIPES,
    "torch.utils.data.non_deterministic": _PIPES,
    "torch.utils.data.runtime_validation": _PIPES,
    "torch.utils.data.runtime_validation_disabled": _PIPES,
}
"""What no project can allow, and why. A final dot: all below."""
