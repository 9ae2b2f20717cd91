# SPDX-License-Identifier: Apache-2.0
"""The strategies for the Trainer and their Fabric counterparts."""
