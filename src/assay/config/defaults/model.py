"""Small models to start with."""

from assay.config.lazy import L

mlp = L("torch.nn.Sequential")(
    L("torch.nn.Flatten")(),
    L("torch.nn.Linear")(in_features=784, out_features=128),
    L("torch.nn.ReLU")(),
    L("torch.nn.Linear")(in_features=128, out_features=10),
)

model = mlp
