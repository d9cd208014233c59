"""See `python scripts/train.py --help`."""

from a3c_tf.cli import main, train

if __name__ == "__main__":
    main(train)
