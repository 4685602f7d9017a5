"""The device that the stand-in is built for."""

import os
from types import SimpleNamespace

current_platform = SimpleNamespace(device_type=os.environ.get("FAKE_VLLM_DEVICE", "cpu"))
