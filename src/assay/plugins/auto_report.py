"""The plugin that writes a report of each run into its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = "report"


class AutoReport:
    """Plugin that writes `report/` into the folder of a run once its record has ended.

    It holds `report.html`, `report.md` and a picture of each curve; an attempt that resumes the run
    replaces it.
    """

    def record_end(self, folder: Path) -> None:
        """Write the report of the record in `folder`; errors as of `ReportDocument.write`."""
        from assay.query.run import RunView  # here: a run that begins pays for neither
        from assay.report.run_report import report_run

        before = report_run(RunView(folder), links="..").write(folder / FOLDER, force=True)
        if before is not None:
            shutil.rmtree(before)
