"""See `python scripts/runs.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.runs import runs

if __name__ == "__main__":
    main(runs)
