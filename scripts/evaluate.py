"""See `python scripts/evaluate.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.evaluate import evaluate

if __name__ == "__main__":
    main(evaluate)
