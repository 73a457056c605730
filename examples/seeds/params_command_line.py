"""Parameters from the command line, as the README of thexp shows them:

    python params_command_line.py --epoch=400 --optim.lr=0.01

Other than there: the import, and `unknown="warn"`, because `optim` was not declared and a new name
is refused otherwise. The README prints 0.001 where 0.01 was given, which is a mistake in it.
"""

from assay import Params

params = Params()
params.from_args(unknown="warn")
print(params)
