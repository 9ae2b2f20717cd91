# SPDX-License-Identifier: Apache-2.0
"""What happens to a job that was sent."""
