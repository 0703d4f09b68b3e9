"""What the harness sees of workers without changing the user's script."""

from elastic_harness.observe.report import report_resume, report_samples, report_step, report_worker

__all__ = ["report_resume", "report_samples", "report_step", "report_worker"]
