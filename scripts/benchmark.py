"""See `python scripts/benchmark.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.benchmark import benchmark

if __name__ == "__main__":
    main(benchmark)
