"""What the examples share: options and refusals, texts and their tokens, folders of runs, and how they go."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# threads that wait must not spin: beside other work on the same cores, that made training 20 times slower
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
# a checkout that is not installed works too
sys.path.append(str(Path(__file__).resolve().parents[2]))


@contextmanager
def packages() -> Iterator[None]:
    """Around imports, which take seconds: end the script with a line that says how to get what is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        print(f'{missing.name} is not installed: pip install "x-transformers[examples]"', file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
