from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One coordinator and three owners on this machine, warm, for all tests that need real processes.

    Every owner has a policy file, empty at first: owners read it at the start of every job. Owners know the far ends
    of their lost links, for methods that use them.
    """
    pytest.importorskip("nvflare")
    from loopback import planned, running

    with running(planned("fedavg", 3, "partition.boundary=both"), tmp_path_factory.mktemp("federation")) as parties:
        yield parties
