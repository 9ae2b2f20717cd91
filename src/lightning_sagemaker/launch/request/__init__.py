# SPDX-License-Identifier: Apache-2.0
"""Build the CreateTrainingJob request of a job, and send it."""
