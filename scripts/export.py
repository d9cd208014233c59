"""See `python scripts/export.py --help`."""

from a3c_tf.cli import main
from a3c_tf.commands.export import export

if __name__ == "__main__":
    main(export)
