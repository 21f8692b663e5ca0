# SPDX-License-Identifier: Apache-2.0
"""``python -m zq.http.openapi``: prints the document of a server with every feature and default."""

import json
import sys

from zq.features import described_features
from zq.http.openapi import document
from zq.limits import Limits

json.dump(document(Limits(), pools=True, features=described_features()), sys.stdout, indent=1)
sys.stdout.write("\n")
