"""`python -m hvd_keras` is `hvdrun`."""

import sys

from hvd_keras.run.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
