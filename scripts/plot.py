"""See `python scripts/plot.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.plot import plot

if __name__ == "__main__":
    main(plot)
