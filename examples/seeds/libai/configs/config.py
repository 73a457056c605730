from dataset.dataset import MnistDataSet
from libai.config import LazyCall, get_config
from libai.data.build import build_image_test_loader, build_image_train_loader
from modeling.evaluator import SmallDigits
from modeling.model import NeuralNetwork
from omegaconf import OmegaConf

train = get_config("common/train.py").train
optim = get_config("common/optim.py").optim
graph = get_config("common/models/graph.py").graph

model = LazyCall(NeuralNetwork)(num_classes=10)

dataloader = OmegaConf.create()
dataloader.train = LazyCall(build_image_train_loader)(
    dataset=[LazyCall(MnistDataSet)(path="data/", is_train=True)],
    num_workers=0,
)
dataloader.test = [
    LazyCall(build_image_test_loader)(
        dataset=LazyCall(MnistDataSet)(path="data/", is_train=False, size=200),
        num_workers=0,
    )
]

optim.lr = 0.01
train.update(
    dict(
        output_dir="output/MNIST/",
        train_micro_batch_size=25,
        num_accumulation_steps=2,
        test_micro_batch_size=50,
        train_epoch=4,
        train_iter=0,
        log_period=6,
        warmup_ratio=0.1,
        checkpointer=dict(period=12, max_to_keep=3),
        evaluation=dict(
            enabled=True,
            evaluator=LazyCall(SmallDigits)(),
            eval_period=12,
            eval_metric="small",
            eval_mode="max",
        ),
    )
)
