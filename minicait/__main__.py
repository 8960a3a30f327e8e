"""The program `minicait`, and `python -m minicait`."""

import signal
import sys


def main() -> int:
    if default := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while NumPy is imported ends this without a traceback
    from . import cli

    if default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
