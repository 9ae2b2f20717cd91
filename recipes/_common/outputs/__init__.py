# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: folders, the best checkpoint, the exported model, pictures, pages and metrics."""
