"""`python -m trl_dbbench`: the command `trl-dbbench`."""

from trl_dbbench.cli import main

main()
