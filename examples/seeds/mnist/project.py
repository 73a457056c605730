"""The whole project of the LiBai tutorial: `assay run project.py`.

Other than there: loaders are sections of the config (`data`), data those of `dataset/digits.py`,
and the parts that the library puts in by itself (optimizer, process, what is the best) are written
down. `train` has the tutorial's names.
"""

from dataset.digits import MnistDataSet
from modeling.model import NeuralNetwork

from assay.config import LazyCall

tag = "mnist"
seed = 1234

model = LazyCall(NeuralNetwork)(num_classes=10)

data = dict(
    train=dict(source=LazyCall(MnistDataSet)(is_train=True), batch_size=128),
    test=dict(source=LazyCall(MnistDataSet)(is_train=False), batch_size=32),
)

process = LazyCall("assay.engine.OwnLoss")(
    metrics={"Acc@1": LazyCall("assay.engine.Accuracy")(top=1)}
)
optimizer = LazyCall("torch.optim.AdamW")(lr=1e-3, weight_decay=0.01)
schedule = LazyCall("assay.engine.WarmupCosine")()

train = dict(
    train_epoch=20,
    train_iter=0,
    eval_period=100,
    log_period=10,
    warmup_ratio=0.01,
)

evaluate = dict(splits=["test"])
checkpoint = dict(every="100 steps", keep=3, best=dict(metric="test/Acc@1", mode="max"))
