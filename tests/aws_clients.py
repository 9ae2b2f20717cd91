# SPDX-License-Identifier: Apache-2.0
"""Clients of AWS read the services' descriptions once per process: most tests make sessions, which read them anew.

A plugin of pytest.
"""

from contextlib import suppress
from functools import cache

with suppress(ImportError):  # some environments have no more than what training needs
    import botocore.session

    botocore.session.create_loader = cache(botocore.session.create_loader)
