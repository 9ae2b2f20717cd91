# SPDX-License-Identifier: Apache-2.0
"""The shards that conftest.py puts into S3."""

import numpy as np

LENGTH, ROWS = 16, (300, 1, 451, 97)
ADDRESS = "s3://corpus/some/shards"


def whole(shards, column):
    return np.concatenate([np.load(shards[0] / name) for name in shards[1]["train"][column]])
