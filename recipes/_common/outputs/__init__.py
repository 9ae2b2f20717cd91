# SPDX-License-Identifier: Apache-2.0
"""The outputs of a run: folders, the best checkpoint, the exported model, pictures, pages and metrics."""
