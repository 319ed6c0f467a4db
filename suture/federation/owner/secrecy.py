"""What an owner insists on before it takes part in a secure sum: who it is, with whom, and of how many."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from suture.core.storage import Json, sha256_of_json
from suture.federation.identity import Identity
from suture.federation.owner.policy import Policy
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.terms import Terms
from suture.privacy.secure_aggregation import threshold
from suture.seam import sample_size


@dataclass(frozen=True)
class Secrecy:
    """The part of an agreement that speaks of secure aggregation."""

    identity: Identity
    owners: tuple[str, ...]
    """Everybody who may be in a sum."""
    terms: str
    """Hash of all terms."""
    work: str
    """Hash of the terms without the owners' names: two runs with the same one do the same with the same message."""
    policy: Policy

    @staticmethod
    def of(name: str, identity: Identity | None, terms: Terms, content: Mapping[str, Json], policy: Policy) -> Secrecy:
        """Refuse terms under which no sum would be one this owner opens, before anything is run."""
        if identity is None or identity.name != name:
            whose = "no certificate" if identity is None else f"the certificate of {identity.name}"
            raise Refused(f"secure aggregation needs signatures, and this owner has {whose}", Code.TERMS)
        if name not in terms.owners or len(set(terms.owners)) != len(terms.owners):
            raise Refused("the terms of a secure run must name its owners, this one among them", Code.TERMS)
        work = {key: value for key, value in content.items() if key != "owners"}
        secrecy = Secrecy(identity, terms.owners, sha256_of_json(content), sha256_of_json(work), policy)
        # A census asks everybody; a run may ask a sample, which has to be large enough and have everybody in it who must be.
        count = len(terms.owners) if terms.is_census else sample_size(terms.training.participation, len(terms.owners))
        secrecy.check_members(terms.owners[:count], sampled=True)
        if count < len(terms.owners) and policy.secure_with:
            raise Refused("the policy names owners that must be in every secure sum, and this run asks samples", Code.POLICY)
        return secrecy

    def check_members(self, members: Collection[str], sampled: bool = False) -> None:
        """Refuse a sum of these."""
        fewest = max(self.policy.min_secure_members, self.needed(len(members)))
        if len(members) < fewest:
            missing = ", ".join(name for name in self.owners if name not in members)
            hint = (
                "; let more take part (training.participation)" if sampled else f" (missing: {missing})" if missing else ""
            )
            raise Refused(
                f"a secure sum of {len(members)} of {len(self.owners)} owners is asked for, the policy allows none of fewer "
                f"than {fewest}{hint}",
                Code.POLICY,
            )
        if not sampled and (without := [name for name in self.policy.secure_with if name not in members]):
            raise Refused(f"the policy allows no secure sum without {', '.join(without)}", Code.POLICY)

    def needed(self, members: int) -> int:
        """How many members can open a sum of so many, of this owner's making."""
        return threshold(members, self.policy.secure_colluders)
