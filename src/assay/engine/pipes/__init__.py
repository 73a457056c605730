"""Data as a chain of small stages, from a config or from Python.

1. `stream`  what a stream is: a cursor that can be opened at any position of any epoch
2. `itr`     stages of streams
3. `lst`     stages of sequences, and the way from a stream to one
4. `chain`   one after the other, checked when they are put together
5. `loader`  batches of a stream for the engine, with workers, going on exactly
"""

from assay.engine.pipes import itr as itr
from assay.engine.pipes import lst as lst
from assay.engine.pipes.chain import chain as chain
from assay.engine.pipes.loader import StreamLoader as StreamLoader
from assay.engine.pipes.lst import SequenceWrapper as SequenceWrapper
from assay.engine.pipes.stream import Stream as Stream
