# SPDX-License-Identifier: BSD-3-Clause
"""``python3 -m farcall run -n N program args``."""

import sys

from farcall.launch import main

sys.exit(main())
