"""Build the model and the data that the configs name, and print what `train` says after it was
changed."""

from assay.build import instantiate
from assay.config import get_config

config = get_config("config.py")
model = instantiate(config.model)
print(model.linear_relu_stack[-1])
print(instantiate(get_config("configurable.py").model).linear_relu_stack[-1])

batch = next(iter(instantiate(config.dataloader.train)))
print(sorted(model(**batch)), [len(instantiate(test).dataset) for test in config.dataloader.test])
print(sorted(model.eval()(**batch)), tuple(model(**batch)["prediction_scores"].shape))

train = config.train
print(
    train.train_iter, train.train_epoch, train.train_micro_batch_size, train.log_period, train.seed
)
print(train.evaluation)
