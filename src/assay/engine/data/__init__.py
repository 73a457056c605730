"""Samples, their order and their randomness: functions of seed, epoch and position.

1. `plan`, `samplers`        index at a position of an epoch (a keyed bijection, or a sampler)
2. `randomness`, `workers`   one sample under its own key, here or in a worker process
3. `loader`, `source`        windows of micro-batches for the engine, from a loader or any iterable
4. `map_style`, `streams`    stages over sequences (items by index) and over streams (items in turn)
5. `chain`, `stream_loader`  stages put over each other and checked; batches of a stream
6. `adopt`, `audit`          loaders of torch taken over; an epoch loaded twice and compared
"""
