"""See `python scripts/evaluate.py --help`."""

from a3c_tf.cli import evaluate, main

if __name__ == "__main__":
    main(evaluate)
