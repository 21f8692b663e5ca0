# SPDX-License-Identifier: Apache-2.0
"""What expiry costs and gives back: ``python -m bench.expiry``, whose ``--help`` tells the parts. Prints."""
