"""See `python scripts/benchmark.py --help`."""

from a3c_tf.cli import benchmark, main

if __name__ == "__main__":
    main(benchmark)
