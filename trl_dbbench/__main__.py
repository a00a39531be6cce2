"""`python -m trl_dbbench`: the command `trl-dbbench`."""

from __future__ import annotations

import signal


def main() -> None:
    try:
        from trl_dbbench.cli import main as run_command
    except KeyboardInterrupt:  # the import takes a second
        raise SystemExit(128 + signal.SIGINT) from None
    run_command()


if __name__ == "__main__":
    main()
