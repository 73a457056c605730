"""Measured values in one line and their forms, as the README of thexp shows them.

Other than there: the imports, and a seed instead of numbers that differ each time.
"""

import torch

from assay import Meter

torch.manual_seed(0)

m = Meter()
m.a = 1
m.b = "2"
m.c = torch.rand(1)[0]

m.c1 = torch.rand(1)
m.c2 = torch.rand(2)
m.c3 = torch.rand(4, 4)  # only the first line is kept
print(m)

m = Meter()
m.a = 0.236
m.percent(m.a_)  # there are m.float and m.int too
print(m)
