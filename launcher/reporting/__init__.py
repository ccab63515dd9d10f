"""What users see of a run: failure messages, notifications, plots, the report page, formats of numbers."""
