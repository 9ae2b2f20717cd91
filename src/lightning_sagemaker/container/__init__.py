# SPDX-License-Identifier: Apache-2.0
"""What runs in a container before the program: sent along with a job, not imported here."""
