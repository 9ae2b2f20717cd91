# SPDX-License-Identifier: Apache-2.0
"""Plan a job: resolve its image, source and inputs, check it and estimate its price, without AWS where possible."""
