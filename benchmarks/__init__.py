"""Measurements of this project side by side with comparable tools; see `__main__.py`.

A benchmark that receives SIGTERM stops the processes that it has started.
"""

from local.external_commands import exit_on_sigterm

exit_on_sigterm()
