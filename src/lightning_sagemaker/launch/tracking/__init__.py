# SPDX-License-Identifier: Apache-2.0
"""Follow, download and register jobs that were started."""
