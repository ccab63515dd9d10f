"""Runs a user's script as `python SCRIPT ARGUMENTS` or `python -m MODULE ARGUMENTS` would, but exits at once on errors.

The arguments of this program are `SCRIPT ARGUMENTS…` or `-m MODULE ARGUMENTS…`. A process that is connected to Paddle's
parameter servers crashes with a SIGSEGV when the Python interpreter shuts down, and the crash would hide the traceback
and the exit code of an error. So this program prints the traceback and exits without shutting down the interpreter.
"""

import os
import runpy
import sys
import traceback
import zlib  # noqa: F401 - before Paddle 2.6.2, whose own zlib Python's module would use: gzip and pyarrow would crash

_NOT_THE_SCRIPT = (__file__, runpy.__file__, "<frozen runpy>")
"""Files whose frames are left out of a traceback."""


def main() -> None:
    """Run the script or module that the arguments of this process specify."""
    is_module = sys.argv[1] == "-m"
    del sys.argv[: 1 + is_module]
    script = sys.argv[0]
    # This program imports little before the script runs.
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH109, PTH120
    code: object = 0
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)  # noqa: T201 - as Python does
            code = 1
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code.co_filename in _NOT_THE_SCRIPT:
            place = place.tb_next
        traceback.print_exception(error.with_traceback(place))
        code = 1
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code) & 0xFF)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
