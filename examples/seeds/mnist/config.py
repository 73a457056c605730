"""The config of the LiBai tutorial, its three parts in one file.

Other than there: the imports, which come from assay and from the folders beside this file;
`configs/train.py` holds the defaults that the tutorial lists; loaders without workers.
"""

from configs.train import train
from dataset.dataset import MnistDataSet, build_image_test_loader, build_image_train_loader
from modeling.model import NeuralNetwork
from omegaconf import OmegaConf

from assay.config import LazyCall

model = LazyCall(NeuralNetwork)(num_classes=10)

dataloader = OmegaConf.create()
dataloader.train = LazyCall(build_image_train_loader)(
    dataset=[
        LazyCall(MnistDataSet)(
            path="/workspace/quickstart/data/",
            is_train=True,
        )
    ],
    num_workers=0,
)
dataloader.test = [
    LazyCall(build_image_test_loader)(
        dataset=LazyCall(MnistDataSet)(
            path="/workspace/quickstart/data/",
            is_train=False,
        ),
        num_workers=0,
    )
]

train.update(
    dict(
        recompute_grad=dict(enabled=True),
        amp=dict(enabled=True),
        output_dir="output/MNIST/",
        train_micro_batch_size=128,
        test_micro_batch_size=32,
        train_epoch=20,
        train_iter=0,
        eval_period=100,
        log_period=10,
        warmup_ratio=0.01,
        topk=(1,),
        dist=dict(
            data_parallel_size=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        evaluation=dict(
            enabled=True,
        ),
    )
)
