"""The composition root: the one room that knows config, build, engine and record.

A run, in the order in which it happens:

1. `launch`      settings of the command line; the task for another OS process; the result
2. `trust`       a config, read; one of a record only if it may run here
3. `checks`      its shape, then its calls; `examination`  all that a run refuses
4. `run_many`    the points of a sweep, one after another
5. `training`    a new run, or a further attempt of an old one, from `weights`
6. `ranks`       the OS processes that share it, and who looks after them
7. `run_scope`   config, context, device, plugins, process group
8. `loaders`     data; `prepared_run`  model, optimizer step, engine
9. `callbacks`   evaluation, checkpoints, display, trace
10. `run_attempt`  signals, `run_record`, the first step, and the end
11. `testing`    the test that follows; `exporting`  the model that leaves the house

`task_process` is the other side of a task: a rank, a job, a replay or a `rehearsal`. What is heavy
(torch above all) is imported when it is used, so that a mistake in a config is told before.
"""

from assay.compose.checks import Examiner as Examiner
from assay.compose.checks import check_calls as check_calls
from assay.compose.checks import ensure_sound as ensure_sound
from assay.compose.checks import problems_of_shape as problems_of_shape
from assay.compose.examination import examine_runs as examine_runs
from assay.compose.examination import problems_of_runs as problems_of_runs
from assay.compose.exporting import ExportRequest as ExportRequest
from assay.compose.exporting import ExportResult as ExportResult
from assay.compose.exporting import export as export
from assay.compose.launch import Launch as Launch
from assay.compose.launch import RunResult as RunResult
from assay.compose.rehearsal import audit_data as audit_data
from assay.compose.rehearsal import bench_data as bench_data
from assay.compose.run_many import run as run
from assay.compose.run_many import run_one as run_one
from assay.compose.run_many import train_each as train_each
from assay.compose.run_scope import check_device as check_device
from assay.compose.testing import test as test
from assay.compose.testing import train_and_test as train_and_test
from assay.compose.training import config_of_run as config_of_run
from assay.compose.training import listeners as listeners
from assay.compose.training import load_model as load_model
from assay.compose.training import rerun as rerun
from assay.compose.training import resume as resume
from assay.compose.training import resume_or_train as resume_or_train
from assay.compose.training import train as train
from assay.compose.trust import modules_of as modules_of
from assay.compose.trust import open_given as open_given
