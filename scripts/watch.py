"""See `python scripts/watch.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.watch import watch

if __name__ == "__main__":
    main(watch)
