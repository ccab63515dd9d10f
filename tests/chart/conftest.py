"""Put this folder on the import path, so that its tests can import `chart_tools`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
