"""What all tests share: no deadline a case, since a kernel may be compiled in the first one."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")
