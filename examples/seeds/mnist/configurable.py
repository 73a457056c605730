"""The other way of the tutorial to give a model its arguments: a dictionary, for an `__init__`
under @configurable.

Other than there: `{num_classes=10}` is no Python, and a dictionary is written instead.
"""

from modeling.model import NeuralNetwork

from assay.config import LazyCall

cfg = dict(num_classes=10)
model = LazyCall(NeuralNetwork)(cfg)
