# SPDX-License-Identifier: Apache-2.0
"""``python -m zq.http.openapi``: prints the document of a server with every default, and with pools."""

import json
import sys

from zq.http.openapi import document
from zq.limits import Limits

json.dump(document(Limits(), pools=True), sys.stdout, indent=1)
sys.stdout.write("\n")
