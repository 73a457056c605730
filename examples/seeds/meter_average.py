"""Means over what was measured, as the README of thexp shows them.

Other than there: the imports, which it leaves out, and a seed. The means run over all five epochs,
as they do there; call `am.reset()` at the begin of an epoch for the means of each.
"""

import torch

from assay import AvgMeter, Meter

torch.manual_seed(0)

am = AvgMeter()
for j in range(5):
    for i in range(100):
        m = Meter()
        m.percent(m.c_)
        m.a = 1
        m.b = "2"
        m.c = torch.rand(1)[0]

        m.c1 = torch.rand(1)
        m.c2 = torch.rand(2)
        m.c3 = torch.rand(4, 4)
        m.d = [4]
        m.e = {5: "6"}
        # print(m)
        am.update(m)
    print(am)
