"""Looking at what was recorded, and at variables of this machine, as the README of thexp shows it.

It looks at what `experiment.py` has left in the folder where it is run. Other than there: the
imports, functions in place of one viewer, and ids as they come; `globs[nddatasets]` has its quotes.
"""

import pprint as pp
from datetime import timedelta

import assay
from assay.config import globs
from assay.query.find import find_run
from assay.query.key_code import key_code
from assay.query.project_lookup import projects_here
from assay.query.provenance import find_by_name

print(assay.runs(columns=["id", "tag", "status"]))
print(len(assay.runs(recent=timedelta(minutes=20))))
pp.pprint([(each.run.id, each.name) for each in find_by_name("log", projects_here())])
run = find_run("last")  # an id, the beginning of one, a tag, `last-2`, a path
pp.pprint(key_code(run))
pp.pprint((run.tag, run.status, run.file.newest.command))

globs.update("global", "datasets", "/path/to/all/datasets")
print(globs["datasets"])

globs.update("local", "a", 1)
print(globs.list_config(globa=True, local=True))
print(globs.glob_fn)
