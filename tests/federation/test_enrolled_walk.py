"""From invitations to a finished run: owners that made their own keys, as separate processes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from loopback import Loopback, planned, write_shards

from suture.cli import main
from suture.runs.folder import read_outcome

pytestmark = pytest.mark.federation


class Enrolled(Loopback):
    """The parties of a federation whose owners have enrolled, by the commands that people type."""

    def found(self, server: str, kits: Path) -> None:
        from suture.federation.flare.authority import Authority
        from suture.federation.flare.provisioning import invited, plan_of

        assert main(["federation", "create", "--owners", ",".join(self.owners), "--server", server, "--out", str(kits)]) == 0
        authority = Authority(kits / "authority")
        for owner in self.owners:
            # The token is on the screen only; a new invitation has a new one.
            invitation, token = invited(authority, plan_of(authority), owner, self.folder)
            signed = self.folder / f"{owner}.crt"
            assert main(["owner", "enrol", str(invitation), "--out", str(kits / owner), "--token", token]) == 0
            request = str(kits / owner / "request.json")
            assert main(["federation", "sign", request, "--authority", str(authority.folder), "--out", str(signed)]) == 0
            assert main(["owner", "enrol", "--complete", str(kits / owner), str(signed)]) == 0


def test_enrolled_owners_finish_a_run(tmp_path: Path) -> None:
    made = planned("fedavg", 3, "rounds=2", "model.hidden=8")
    world = write_shards(made, tmp_path / "shards")
    parties = Enrolled(tmp_path, world.clients.ids, tmp_path / "shards")
    parties.start()
    try:
        parties.wait()
        folder = parties.carry_out([parties.order(made, "enrolled")])[0]
    finally:
        parties.stop()
    assert read_outcome(folder) is not None
    for owner in world.clients.ids:
        assert (parties.kits[owner] / "suture" / "runs" / "enrolled" / "finished.json").exists()
