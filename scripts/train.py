"""See `python scripts/train.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.train import train

if __name__ == "__main__":
    main(train)
