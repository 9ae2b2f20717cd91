# SPDX-License-Identifier: Apache-2.0
"""Clients of AWS read the services' descriptions once per process, not once per session: most tests make sessions of their own.

A plugin of pytest.
"""

from functools import cache

import botocore.session

botocore.session.create_loader = cache(botocore.session.create_loader)
