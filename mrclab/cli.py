"""``mrclab``: run a command, and turn every error into one line and an exit code.

Exit codes (docs/troubleshooting.md): 0 success, 2 bad input, 3 the machine lacks something, 1 anything else.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from mrclab.commands import carry_out, parser
from mrclab.extras import missing_extra
from mrclab.linux.errors import InputError, MrclabError
from mrclab.linux.life import signals
from mrclab.logs import set_up_logging

FAILED, INTERRUPTED = 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code. Signals end it in order, from the start on."""
    with signals.as_exceptions():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    try:
        _require_utf8(sys.argv[1:] if argv is None else argv)
    except InputError as error:
        return _fail(error, error.exit_code)
    args = parser().parse_args(argv)
    set_up_logging(verbose=args.verbose)
    try:
        code = carry_out(args)
        sys.stdout.flush()
        return code
    except signals.Ended as ended:
        return _fail(ended, 128 + ended.number)
    except MrclabError as error:
        if args.verbose and error.exit_code == FAILED:
            raise
        return _fail(error, error.exit_code)
    except BrokenPipeError:
        # The reader of our output has closed it (`mrclab status | head`): there is nowhere left to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:
        if args.verbose:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" (writing {error.filename})" if error.filename else ""
            return _fail(f"the disk is full{where}: make room (mrclab prune), and try again", FAILED)
        return _fail(f"{type(error).__name__}: {error} (--verbose shows where)", FAILED)
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # a library tidied up, and failed at that
            return _fail("interrupted", INTERRUPTED)
        if args.verbose:
            raise
        if (lacking := missing_extra(args.command, error)) is not None:
            return _fail(lacking, lacking.exit_code)
        return _fail(f"{type(error).__name__}: {error} (--verbose shows where)", FAILED)


def _require_utf8(words: Sequence[str]) -> None:
    """Raise InputError if a word is not text: results and pages, which are UTF-8, could not name it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"'{word}' holds bytes that are not UTF-8: give another name") from None


def _fail(error: object, code: int) -> int:
    print(f"mrclab: {error}", file=sys.stderr)
    return code
