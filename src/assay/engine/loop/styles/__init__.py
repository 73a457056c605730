"""The styles in which a training may be written, each a process to the engine.

process.py      forward_step(batch) -> (loss, output): `Process`, `Supervised` (not in here: it is
the contract itself) own_loss.py     a model that computes its own loss train_batch.py
train_batch(eidx, idx, global_step, batch_data, params, device) flags.py        forward(batch,
needs_loss, requires_grad) function.py     step(batch) hand.py         for batch in engine duck.py
any object with the methods of a process adapt.py        which of them something is
"""
