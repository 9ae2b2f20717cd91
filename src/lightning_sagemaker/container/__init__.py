# SPDX-License-Identifier: Apache-2.0
"""Programs that run in a container before the user's: sent with a job, not imported by the package."""
