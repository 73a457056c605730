"""The styles in which a training may be written, each a process to the engine.

`own_loss`     a model that computes its own loss
`train_batch`  train_batch(eidx, idx, global_step, batch_data, params, device)
`flags`        forward(batch, needs_loss, requires_grad)
`function`     step(batch)
`hand`         for batch in engine
`duck`         any object with the methods of a process
`own_updates`  base of those that make their updates themselves
`adapt`        which of them an object is

forward_step(batch) -> (loss, output) is the contract itself: `Process` in `loop.process`.
"""
