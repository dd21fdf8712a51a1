"""`python -m onehop`: the command, where its script is not on the path."""

from onehop.cli.main import run

run()
