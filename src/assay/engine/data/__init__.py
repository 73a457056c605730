"""Which samples are seen, in which order, with which randomness: a pure function of seed, epoch and
position.

1. `plan`    which index stands at a position of an epoch (a keyed bijection)
2. `loader`  samples at positions, each loaded under its own key, collated to batches
3. `source`  windows of micro-batches for the engine, from a loader or from anything that can be iterated
"""
