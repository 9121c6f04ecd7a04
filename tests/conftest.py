"""What all tests share: no deadline a case, since a kernel may be compiled in the first one, and no private run that is
written into the privacy ledgers of whoever runs the tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")


@pytest.fixture(scope="session", autouse=True)
def ledgers(tmp_path_factory):
    """A temporary folder of privacy ledgers, for subprocesses as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_LEDGERS", str(tmp_path_factory.mktemp("ledgers")))
        yield
