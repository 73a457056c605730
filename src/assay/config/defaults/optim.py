"""Optimizers. Their parameters come from the model."""

from assay.config.lazy import L

SGD = L("torch.optim.SGD")(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
Adam = L("torch.optim.Adam")(lr=1e-3)
AdamW = L("torch.optim.AdamW")(lr=1e-3, betas=[0.9, 0.999], weight_decay=0.01)
RMSprop = L("torch.optim.RMSprop")(lr=1e-2)

optimizer = AdamW
