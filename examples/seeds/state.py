"""What the README of flame shows of a state: its fields, their defaults, and what is saved of
it."""

from assay.engine import State

FIELDS = [
    "epoch",
    "max_epochs",
    "local_iteration",
    "global_iteration",
    "epoch_length",
    "max_iterations",
    "batch",
    "output",
    "dataloader",
    "metrics",
]

state = State()
for name in FIELDS:
    print(f"{name} = {getattr(state, name)!r}")

state.epoch, state.step, state.metrics = 2, 7, {"valid": {"acc": 0.5, "loss": [1.0, 2.0]}}
state.batch = state.output = state.dataloader = "not kept"
loaded = State()
loaded.load_state_dict(state.state_dict())
print(
    loaded.epoch,
    loaded.global_iteration,
    loaded.metrics,
    loaded.batch,
    loaded.output,
    loaded.dataloader,
)
