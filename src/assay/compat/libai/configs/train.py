"""Defaults of training, as LiBai lists them."""

from assay.config import LazyCall

train = dict(
    output_dir="./output",
    train_micro_batch_size=32,
    global_batch_size=None,
    num_accumulation_steps=None,
    train_iter=10000,
    train_epoch=0,
    consumed_train_samples=0,
    consumed_valid_samples=0,
    train_samples=None,
    warmup_ratio=0,
    start_iter=0,
    amp=dict(enabled=False),
    activation_checkpoint=dict(enabled=False),
    nccl_fusion_threshold_mb=16,
    nccl_fusion_max_ops=24,
    zero_optimization=dict(enabled=False, stage=1),
    checkpointer=dict(period=5000, max_to_keep=100),
    test_micro_batch_size=32,
    evaluation=dict(
        enabled=True,
        evaluator=LazyCall("libai.evaluation.ClsEvaluator")(topk=(1, 5)),
        eval_period=5000,
        eval_iter=1e9,
        eval_metric="Acc@1",
        eval_mode="max",
    ),
    load_weight="",
    log_period=20,
    scheduler=LazyCall("libai.scheduler.WarmupCosineLR")(
        warmup_factor=0.001, alpha=0.01, warmup_method="linear"
    ),
    dist=dict(data_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1),
    seed=1234,
)
