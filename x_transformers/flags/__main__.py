"""The table of all flags, and what one of them does.

python -m x_transformers.flags             the table
python -m x_transformers.flags rotary      one flag, or every flag whose name holds this
"""

from __future__ import annotations

import inspect
import sys

import x_transformers
from x_transformers.flags import REQUIRED, Configurable, Flag, did_you_mean, flags_of, shown


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
